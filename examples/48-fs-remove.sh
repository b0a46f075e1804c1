#!/bin/sh
# Remove the directory and everything in it.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/remove <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files", "recursive": true}
END
