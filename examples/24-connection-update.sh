#!/bin/sh
# Change a connection's name.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/update <<END
{"connection": "$(cat "$state/connection")", "name": "Renamed shell"}
END
