#!/bin/sh
# Ask how far the tunnel is, and where it listens.
set -eu
. "$(dirname "$0")/request.sh"

post /tunnel/query <<END
{"connections": ["$(cat "$state/tunnel")"]}
END
