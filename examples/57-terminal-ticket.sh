#!/bin/sh
# Get a ticket with which a browser can attach, once and within 30 seconds.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/ticket <<END | keep ticket ticket
{"terminal": "$(cat "$state/terminal")"}
END
