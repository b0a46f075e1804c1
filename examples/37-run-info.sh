#!/bin/sh
# Describe a run.
set -eu
. "$(dirname "$0")/request.sh"

post /run/info <<END
{"run": "$(cat "$state/run")"}
END
