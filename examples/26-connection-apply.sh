#!/bin/sh
# Make categories, and give the connection another name, in one step. It adds and removes connections too.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/apply <<END
{"categories": [["Examples", "More"], ["Examples", "Others"]],
 "change": [{"connection": "$(cat "$state/connection")", "name": "Renamed at once"}]}
END
