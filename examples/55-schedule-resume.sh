#!/bin/sh
# Let a paused schedule fire again.
set -eu
. "$(dirname "$0")/request.sh"

post /schedule/resume <<END
{"schedule": "nightly"}
END
