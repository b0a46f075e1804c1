#!/bin/sh
# Add categories and rename the connection in one step. It can add and remove connections too.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/apply <<END
{"categories": [["Examples", "More"], ["Examples", "Others"]],
 "change": [{"connection": "$(cat "$state/connection")", "name": "Renamed at once"}]}
END
