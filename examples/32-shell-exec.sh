#!/bin/sh
# Run a command and see its output as it is printed: one line of JSON for each piece, and a last one with the exit code.
set -eu
. "$(dirname "$0")/request.sh"

curl -sS --no-buffer --fail-with-body -H @"$state/headers" -H "Accept: application/x-ndjson" \
    --data-binary @- "$url/shell/exec" <<END
{"connection": "$(cat "$state/connection")", "command": "echo one; sleep 0.2; echo two; sleep 0.2; echo oops >&2; exit 3"}
END
