#!/bin/sh
# Write a file while it is sent, without a blob.
set -eu
. "$(dirname "$0")/request.sh"

printf 'Hello from connmgr\n' |
    curl -sS --fail-with-body -H @"$state/headers" -H "Content-Type: application/octet-stream" --data-binary @- \
        "$url/fs/upload?connection=$(cat "$state/connection")&path=$state/files/sent&mode=0640"
rm "$state/files/sent"
