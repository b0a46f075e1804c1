#!/bin/sh
# List the targets that failed, each with the end of its output.
set -eu
. "$(dirname "$0")/request.sh"

post /run/targets <<END
{"run": "$(cat "$state/run")", "states": ["failed"], "offset": 0, "limit": 100}
END
