#!/bin/sh
# Kill all processes of a job, and show its end.
set -eu
. "$(dirname "$0")/request.sh"

post /job/start <<END | keep killed job >/dev/null
{"connection": "$(cat "$state/connection")", "command": "sleep 600"}
END
post /job/kill <<END
{"job": "$(cat "$state/killed")", "signal": "TERM", "grace": 5}
END
post /job/wait <<END
{"job": "$(cat "$state/killed")", "wait": 25}
END
