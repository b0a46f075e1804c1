#!/bin/sh
# Tell the next times of a schedule.
set -eu
. "$(dirname "$0")/request.sh"

post /schedule/next <<END
{"schedule": "nightly", "count": 3}
END
