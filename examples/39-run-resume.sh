#!/bin/sh
# Go on with a paused run, or let the next wave begin.
set -eu
. "$(dirname "$0")/request.sh"

post /run/resume <<END
{"run": "$(cat "$state/paused")"}
END
