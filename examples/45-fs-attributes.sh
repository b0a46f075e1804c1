#!/bin/sh
# Change the permissions of the file.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/attributes <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files/hello", "mode": "0644"}
END
