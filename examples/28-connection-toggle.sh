#!/bin/sh
# Store a tunnel to a service of the local machine, and open it: the service is reached at the tunnel's address.
set -eu
. "$(dirname "$0")/request.sh"

local=f0ec68aa-63f5-405c-b178-9a4454556d6b

post /connection/add <<END | keep tunnel connection >/dev/null
{"name": "example service", "data": {"type": "customService", "host": "$local", "remotePort": 8080}}
END

post /connection/toggle <<END
{"connection": "$(cat "$state/tunnel")", "state": true}
END
