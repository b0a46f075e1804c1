#!/bin/sh
# Start the connection's shell.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/start <<END
{"connection": "$(cat "$state/connection")"}
END
