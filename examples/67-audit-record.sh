#!/bin/sh
# Tell what the token of the monitoring script has done.
set -eu
. "$(dirname "$0")/request.sh"

post /audit/record <<'END'
{"token": "monitoring", "outputs": false}
END
