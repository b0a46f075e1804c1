#!/bin/sh
# List the control sockets that are open.
set -eu
. "$(dirname "$0")/request.sh"

post /multiplex/query <<END
{}
END
