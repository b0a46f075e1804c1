#!/bin/sh
# Change the times of a schedule; the rest stays.
set -eu
. "$(dirname "$0")/request.sh"

post /schedule/update <<END
{"schedule": "nightly", "cron": "0 3 * * 1-5"}
END
