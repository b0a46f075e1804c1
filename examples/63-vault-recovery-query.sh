#!/bin/sh
# List the recovery keys; their words are nowhere.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/recovery/query </dev/null
