#!/bin/sh
# Close the terminal: its program gets HUP. Screen and output stay available for 5 minutes.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/close <<END
{"terminal": "$(cat "$state/terminal")"}
END
