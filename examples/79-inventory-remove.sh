#!/bin/sh
# Remove an inventory; its connections stay.
set -eu
. "$(dirname "$0")/request.sh"

post /inventory/remove <<'END'
{"name": "lab"}
END
