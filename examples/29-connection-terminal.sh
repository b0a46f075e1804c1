#!/bin/sh
# Request a page with a terminal on a connection; the answer is empty if there is none.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/terminal <<END
{"connection": "$(cat "$state/connection")"}
END
