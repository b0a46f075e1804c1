#!/bin/sh
# Forget the key of a reinstalled host, and remove the connection to it.
set -eu
. "$(dirname "$0")/request.sh"

post /hostkey/forget <<END
{"connection": "$(cat "$state/host")"}
END
post /connection/remove <<END
{"connections": ["$(cat "$state/host")"]}
END
