#!/bin/sh
# Compute the SHA-256 of what a directory holds, on its machine.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/checksum <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files"}
END
