#!/bin/sh
# Show, as the holder of a token, its scopes and the actions that they allow.
set -eu
. "$(dirname "$0")/request.sh"

curl -sS --fail-with-body -X POST -H @"$state/monitoring" "$url/token/info"
