#!/bin/sh
# Have the next session on the connection log in anew.
set -eu
. "$(dirname "$0")/request.sh"

post /multiplex/renew <<END
{"connection": "$(cat "$state/connection")"}
END
