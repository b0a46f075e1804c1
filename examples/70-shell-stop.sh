#!/bin/sh
# Stop the shell; the answer comes when it has exited.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/stop <<END
{"connection": "$(cat "$state/connection")"}
END
