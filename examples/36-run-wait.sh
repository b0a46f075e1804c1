#!/bin/sh
# Wait for the end of the run, 25 seconds at most.
set -eu
. "$(dirname "$0")/request.sh"

post /run/wait <<END
{"run": "$(cat "$state/run")", "wait": 25}
END
