#!/bin/sh
# Show the versions of the API and of connmgr.
set -eu
. "$(dirname "$0")/request.sh"

post /daemon/version <<END
{}
END
