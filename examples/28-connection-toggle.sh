#!/bin/sh
# Store a service of the local machine, and want it open: what listens on its port can be reached by the tunnel's address.
set -eu
. "$(dirname "$0")/request.sh"

local=f0ec68aa-63f5-405c-b178-9a4454556d6b

post /connection/add <<END | keep tunnel connection >/dev/null
{"name": "example service", "data": {"type": "customService", "host": "$local", "remotePort": 8080}}
END

post /connection/toggle <<END
{"connection": "$(cat "$state/tunnel")", "state": true}
END
