#!/bin/sh
# Rename the file.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/move <<END
{"connection": "$(cat "$state/connection")", "source": "$state/files/hello", "target": "$state/files/greeting"}
END
