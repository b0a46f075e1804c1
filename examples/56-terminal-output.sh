#!/bin/sh
# Read the output of the terminal, from its first byte on.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/output <<END
{"terminal": "$(cat "$state/terminal")", "offset": 0}
END
