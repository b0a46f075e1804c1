#!/bin/sh
# Extract the archive of the last example into another directory, while it is sent.
set -eu
. "$(dirname "$0")/request.sh"

curl -sS --fail-with-body -H @"$state/headers" -H "Content-Type: application/x-tar" --data-binary @"$state/files.tar" \
    "$url/fs/extract?connection=$(cat "$state/connection")&path=$state/files/copy"
