#!/bin/sh
# Close the terminal: its program is sent HUP. Screen and output can still be asked for, for 5 minutes.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/close <<END
{"terminal": "$(cat "$state/terminal")"}
END
