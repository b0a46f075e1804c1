#!/bin/sh
# List the installed connection types, and the fields of their data.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/types <<END
{}
END
