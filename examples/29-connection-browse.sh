#!/bin/sh
# Request a page with a connection's files; the answer is empty if there is none.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/browse <<END
{"connection": "$(cat "$state/connection")", "directory": "/"}
END
