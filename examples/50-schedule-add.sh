#!/bin/sh
# Begin a run every night at 2:30 in Vienna, on whatever has the label then.
set -eu
. "$(dirname "$0")/request.sh"

post /schedule/add <<END
{"name": "nightly", "cron": "30 2 * * *", "timezone": "Europe/Vienna", "jitter": 600, "catchUp": "latest",
 "run": {"where": "env=prod", "command": "uptime", "stopAfter": "5%"}}
END
