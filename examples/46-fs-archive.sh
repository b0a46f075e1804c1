#!/bin/sh
# Get a directory of a machine as an archive, and list its members.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/archive >"$state/files.tar" <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files"}
END
tar -tf "$state/files.tar"
