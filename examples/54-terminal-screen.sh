#!/bin/sh
# Look at the screen of the terminal, once the question stands there.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/screen <<END
{"terminal": "$(cat "$state/terminal")", "contains": "Name?", "wait": 25}
END
