#!/bin/sh
# Describe a schedule: when it fires next, and how its last run went.
set -eu
. "$(dirname "$0")/request.sh"

post /schedule/query <<END
{"name": "nightly"}
END
