#!/bin/sh
# Resize the terminal.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/resize <<END
{"terminal": "$(cat "$state/terminal")", "columns": 100, "rows": 30}
END
