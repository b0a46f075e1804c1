#!/bin/sh
# Compute the SHA-256 of the files in a directory, on its machine.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/checksum <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files"}
END
