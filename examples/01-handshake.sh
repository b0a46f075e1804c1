#!/bin/sh
# Exchange a credential for a session token, and keep the token for the other examples. The credential is the one that
# CONNMGR_TOKEN, CONNMGR_TOKEN_FILE or CONNMGR_API_KEY_FILE names, or else the content of the auth file.
set -eu
. "$(dirname "$0")/request.sh"

auth=$(credential)
echo "Content-Type: application/json" >"$state/headers"
post /handshake <<END | keep token sessionToken
{"auth": $auth, "client": {"type": "api", "name": "examples"}}
END
echo "Authorization: Bearer $(cat "$state/token")" >>"$state/headers"
