#!/bin/sh
# Close the control socket.
set -eu
. "$(dirname "$0")/request.sh"

post /multiplex/close <<END
{"connections": ["$(cat "$state/connection")"]}
END
