#!/bin/sh
# Forget the key of a host that was set up anew, and remove the connection to it.
set -eu
. "$(dirname "$0")/request.sh"

post /hostkey/forget <<END
{"connection": "$(cat "$state/host")"}
END
post /connection/remove <<END
{"connections": ["$(cat "$state/host")"]}
END
