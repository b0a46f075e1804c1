#!/bin/sh
# Remove the connection.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/remove <<END
{"connections": ["$(cat "$state/connection")"]}
END
