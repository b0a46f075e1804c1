#!/bin/sh
# Write a file from the blob, in one step.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/write <<END
{"connection": "$(cat "$state/connection")", "blob": "$(cat "$state/blob")", "path": "$state/files/hello", "mode": "0640"}
END
