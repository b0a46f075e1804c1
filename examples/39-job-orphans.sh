#!/bin/sh
# List the jobs on the machine that no connection of the vault has; "remove": true removes those that have ended.
set -eu
. "$(dirname "$0")/request.sh"

post /job/orphans <<END
{"connection": "$(cat "$state/connection")", "remove": false, "minAge": 86400}
END
