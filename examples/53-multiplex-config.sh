#!/bin/sh
# Print a configuration for ssh, by which it finds the connection.
set -eu
. "$(dirname "$0")/request.sh"

post /multiplex/config <<END
{"filters": [], "connections": ["$(cat "$state/connection")"], "program": ["connmgr"]}
END
