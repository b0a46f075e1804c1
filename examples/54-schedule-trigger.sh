#!/bin/sh
# Start a schedule's run now.
set -eu
. "$(dirname "$0")/request.sh"

post /schedule/trigger <<END
{"schedule": "nightly"}
END
