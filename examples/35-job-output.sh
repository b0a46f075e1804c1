#!/bin/sh
# Read the output of the job from two offsets on. Without new output, the answer waits for some, up to 25 seconds.
set -eu
. "$(dirname "$0")/request.sh"

post /job/output <<END
{"job": "$(cat "$state/job")", "stdout": 0, "stderr": 0, "wait": 25, "until": "exit"}
END
