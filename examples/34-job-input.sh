#!/bin/sh
# Send the job its input, and end the input.
set -eu
. "$(dirname "$0")/request.sh"

post /job/input <<END
{"job": "$(cat "$state/job")", "data": "world\n", "eof": true}
END
