#!/bin/sh
# End the token, and what runs by it; it is answered token_revoked from now on.
set -eu
. "$(dirname "$0")/request.sh"

post /token/revoke <<END
{"id": "$(cat "$state/token-id")"}
END

curl -sS -H @"$state/monitoring" --data-binary @- "$url/daemon/version" <<END
{}
END
