#!/bin/sh
# Read the file; the answer is its content.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/read <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files/hello"}
END
