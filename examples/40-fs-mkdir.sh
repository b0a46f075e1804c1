#!/bin/sh
# Create a directory on the shell's machine.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/mkdir <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files", "parents": true}
END
