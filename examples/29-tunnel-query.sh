#!/bin/sh
# Show the tunnel's state and address.
set -eu
. "$(dirname "$0")/request.sh"

post /tunnel/query <<END
{"connections": ["$(cat "$state/tunnel")"]}
END
