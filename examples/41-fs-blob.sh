#!/bin/sh
# Store bytes in the daemon, for a later write.
set -eu
. "$(dirname "$0")/request.sh"

printf 'Hello from connmgr\n' |
    curl -sS --fail-with-body -H @"$state/headers" -H "Content-Type: application/octet-stream" --data-binary @- "$url/fs/blob" |
    keep blob blob
