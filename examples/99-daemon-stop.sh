#!/bin/sh
# Stop the daemon.
set -eu
. "$(dirname "$0")/request.sh"

post /daemon/stop <<END
{}
END
