#!/bin/sh
# End the session of the page that 97-web-login.sh began.
set -eu
. "$(dirname "$0")/request.sh"

printf 'Content-Type: application/json\nAuthorization: Bearer %s\n' "$(cat "$state/page-token")" >"$state/page-headers"
curl -sS --fail-with-body -H @"$state/page-headers" -X POST "$url/web/logout"
