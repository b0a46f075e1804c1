#!/bin/sh
# Print what the file had before the change.
set -eu
. "$(dirname "$0")/request.sh"

post /undo/read <<END
{"change": "$(cat "$state/change")"}
END
