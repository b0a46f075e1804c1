#!/bin/sh
# Ask the source of an inventory now; this only shows what would change.
set -eu
. "$(dirname "$0")/request.sh"

post /inventory/renew <<'END'
{"name": "lab", "dryRun": true}
END
