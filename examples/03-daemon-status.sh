#!/bin/sh
# How is the daemon: which shells run, and what is in use?
set -eu
. "$(dirname "$0")/request.sh"

post /daemon/status <<END
{}
END
