#!/bin/sh
# Stop a run, and kill the commands that still run.
set -eu
. "$(dirname "$0")/request.sh"

post /run/stop <<END
{"run": "$(cat "$state/paused")", "kill": true}
END
post /run/wait <<END
{"run": "$(cat "$state/paused")"}
END
