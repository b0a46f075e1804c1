#!/bin/sh
# List the recordings of terminals, the newest first.
set -eu
. "$(dirname "$0")/request.sh"

post /recording/query <<END
{"connectionFilter": "*"}
END
