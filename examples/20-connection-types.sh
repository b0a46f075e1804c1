#!/bin/sh
# Which types of connections are installed, and which fields has their data?
set -eu
. "$(dirname "$0")/request.sh"

post /connection/types <<END
{}
END
