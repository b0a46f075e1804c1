#!/bin/sh
# Return the id of a connection that runs as another user, by sudo over a connection.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/elevate <<END
{"connection": "$(cat "$state/connection")", "user": "root"}
END
