#!/bin/sh
# Make a directory on the machine that the shell is on.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/mkdir <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files", "parents": true}
END
