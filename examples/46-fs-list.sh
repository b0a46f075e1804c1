#!/bin/sh
# List the directory.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/list <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files"}
END
