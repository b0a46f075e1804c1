#!/bin/sh
# Start a job: a command that runs independently. This one reads its input later.
set -eu
. "$(dirname "$0")/request.sh"

post /job/start <<END | keep job job
{"connection": "$(cat "$state/connection")", "command": "cat; echo oops >&2; exit 3", "name": "example", "stdin": "open"}
END
