#!/bin/sh
# Show again who uses the page that 97-web-login.sh began. The setting web-step-up asks for nothing here.
set -eu
. "$(dirname "$0")/request.sh"

printf 'Content-Type: application/json\nAuthorization: Bearer %s\n' "$(cat "$state/page-token")" >"$state/page-headers"
curl -sS --fail-with-body -H @"$state/page-headers" --data '{}' "$url/web/confirm"
