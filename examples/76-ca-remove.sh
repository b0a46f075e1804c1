#!/bin/sh
# Remove an authority with its key.
set -eu
. "$(dirname "$0")/request.sh"

post /ca/remove <<END
{"name": "team"}
END
