#!/bin/sh
# Open a connection to test it, and store the result as its state.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/refresh <<END
{"connection": "$(cat "$state/connection")"}
END
