#!/bin/sh
# List the terminals that run, or ended lately.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/query <<END
{"connectionFilter": "*"}
END
