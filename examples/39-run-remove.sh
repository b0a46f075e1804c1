#!/bin/sh
# Remove a run that has ended, with the output of its targets.
set -eu
. "$(dirname "$0")/request.sh"

post /run/remove <<END
{"run": "$(cat "$state/retried")"}
END
