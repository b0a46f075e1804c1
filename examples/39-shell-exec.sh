#!/bin/sh
# Run a command that may take long: after half a second the answer is a job, which runs on.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/exec <<END | keep job job
{"connection": "$(cat "$state/connection")", "command": "echo begun; sleep 600", "detachAfter": 0.5}
END
post /job/remove <<END
{"job": "$(cat "$state/job")", "force": true}
END
