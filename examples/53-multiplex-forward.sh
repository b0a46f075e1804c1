#!/bin/sh
# Open a forward of the control socket: a free port of this machine leads to port 80 of the remote host.
set -eu
. "$(dirname "$0")/request.sh"

post /multiplex/forward <<END
{"connection": "$(cat "$state/connection")", "kind": "local", "port": 0, "to": {"host": "localhost", "port": 80}}
END
