#!/bin/sh
# Let a schedule not fire for a while.
set -eu
. "$(dirname "$0")/request.sh"

post /schedule/pause <<END
{"schedule": "nightly", "reason": "The freeze before the release."}
END
