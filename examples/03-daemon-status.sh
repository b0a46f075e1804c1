#!/bin/sh
# Show the daemon's state: running shells, and resources in use.
set -eu
. "$(dirname "$0")/request.sh"

post /daemon/status <<END
{}
END
