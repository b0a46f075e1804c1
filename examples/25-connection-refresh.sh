#!/bin/sh
# Open a connection to see that it works, and store what is found as its state.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/refresh <<END
{"connection": "$(cat "$state/connection")"}
END
