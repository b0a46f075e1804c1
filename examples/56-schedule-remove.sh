#!/bin/sh
# Remove a schedule; its runs stay.
set -eu
. "$(dirname "$0")/request.sh"

post /schedule/remove <<END
{"schedule": "nightly"}
END
