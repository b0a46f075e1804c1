#!/bin/sh
# Describe the file.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/stat <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files/hello"}
END
