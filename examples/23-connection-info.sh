#!/bin/sh
# Describe connections; secrets in their data stay encrypted.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/info <<END
{"connections": ["$(cat "$state/connection")"]}
END
