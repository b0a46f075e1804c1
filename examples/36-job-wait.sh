#!/bin/sh
# Wait for the end of the job, 25 seconds at most.
set -eu
. "$(dirname "$0")/request.sh"

post /job/wait <<END
{"job": "$(cat "$state/job")", "wait": 25}
END
