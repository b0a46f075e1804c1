#!/bin/sh
# Ask which variables of its environment a client sends to a connection, and which are set there anyway.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/environment <<END
{"connection": "$(cat "$state/connection")"}
END
