#!/bin/sh
# List the terminals that run or have ended recently.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/query <<END
{"connectionFilter": "*"}
END
