#!/bin/sh
# Type the answer, and print the screen.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/input <<END
{"terminal": "$(cat "$state/terminal")", "data": "Ada\r"}
END
post /terminal/screen <<END
{"terminal": "$(cat "$state/terminal")", "contains": "Hello", "wait": 25}
END
