#!/bin/sh
# Close the forward, named as it was opened.
set -eu
. "$(dirname "$0")/request.sh"

post /multiplex/cancel <<END
{"connection": "$(cat "$state/connection")", "kind": "local", "port": 0, "to": {"host": "localhost", "port": 80}}
END
