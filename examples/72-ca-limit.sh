#!/bin/sh
# Let its certificates name only two users, and last for a minute.
set -eu
. "$(dirname "$0")/request.sh"

post /ca/limit <<END
{"name": "team", "principals": ["deploy", "backup"], "seconds": 60}
END
