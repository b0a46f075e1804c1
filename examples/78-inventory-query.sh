#!/bin/sh
# Describe inventories: their sources, and how their last renewal went.
set -eu
. "$(dirname "$0")/request.sh"

post /inventory/query <<'END'
{"name": "lab"}
END
