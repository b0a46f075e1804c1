#!/bin/sh
# Wait until the terminal shows the question, and print its screen.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/screen <<END
{"terminal": "$(cat "$state/terminal")", "contains": "Name?", "wait": 25}
END
