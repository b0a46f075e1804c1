#!/bin/sh
# Remove the directory with what is in it.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/remove <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files", "recursive": true}
END
