#!/bin/sh
# Make the next key, which hosts shall trust too, and sign by it from then on.
set -eu
. "$(dirname "$0")/request.sh"

post /ca/rotate <<END
{"name": "team"}
END
post /ca/rotate <<END
{"name": "team", "finish": true}
END
