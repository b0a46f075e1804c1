#!/bin/sh
# List the saved commands.
set -eu
. "$(dirname "$0")/request.sh"

post /command/query </dev/null
