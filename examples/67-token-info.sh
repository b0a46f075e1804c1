#!/bin/sh
# Ask, as the holder of a token, what it is for: its scopes, and the actions for which they suffice.
set -eu
. "$(dirname "$0")/request.sh"

curl -sS --fail-with-body -X POST -H @"$state/monitoring" "$url/token/info"
