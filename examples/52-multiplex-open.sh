#!/bin/sh
# Open a control socket, at which ssh finds the connection by its option ControlPath.
set -eu
. "$(dirname "$0")/request.sh"

post /multiplex/open <<END
{"connections": ["$(cat "$state/connection")"]}
END
