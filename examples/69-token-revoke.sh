#!/bin/sh
# Revoke the token, and end what it runs; its requests get token_revoked from now on.
set -eu
. "$(dirname "$0")/request.sh"

post /token/revoke <<END
{"id": "$(cat "$state/token-id")"}
END

curl -sS -H @"$state/monitoring" --data-binary @- "$url/daemon/version" <<END
{}
END
