#!/bin/sh
# List the runs of a name, newest first.
set -eu
. "$(dirname "$0")/request.sh"

post /run/query <<END
{"name": "example"}
END
