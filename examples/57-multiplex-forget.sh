#!/bin/sh
# Remove the file of the configuration for ssh, and close its sockets.
set -eu
. "$(dirname "$0")/request.sh"

post /multiplex/forget <<END
{}
END
