#!/bin/sh
# Read the whole output, equal ones together.
set -eu
. "$(dirname "$0")/request.sh"

post /run/output <<END
{"run": "$(cat "$state/run")"}
END
