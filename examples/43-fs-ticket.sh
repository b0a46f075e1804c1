#!/bin/sh
# Get a ticket with which a browser can download the file, once and within 30 seconds.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/ticket <<END | keep download ticket
{"connection": "$(cat "$state/connection")", "path": "$state/files/hello"}
END
