#!/bin/sh
# Begin no more targets of a run; those that have begun go on.
set -eu
. "$(dirname "$0")/request.sh"

post /run/start <<END | keep paused run
{"connectionFilter": "renamed*", "command": "sleep 100", "fresh": true}
END
post /run/pause <<END
{"run": "$(cat "$state/paused")"}
END
