#!/bin/sh
# Stream a command's input of any size: the request is the first line of the body, and the rest is the input.
set -eu
. "$(dirname "$0")/request.sh"

# With -T . curl prints output while it still sends. The other headers name JSON as the type of the body.
grep '^Authorization:' "$state/headers" >"$state/authorization"
{
    printf '{"connection": "%s", "command": "gunzip | wc -c"}\n' "$(cat "$state/connection")"
    head -c 1000000 /dev/zero | gzip
} | curl -sS --no-progress-meter --fail-with-body -N -T . -X POST -H @"$state/authorization" \
    -H "Content-Type: application/octet-stream" -H "Accept: application/x-ndjson" "$url/shell/exec"
