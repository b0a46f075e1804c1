#!/bin/sh
# Exchange the content of the auth file for a session token, and keep the token for the other examples.
set -eu
. "$(dirname "$0")/request.sh"

auth_file=${CONNMGR_AUTH_FILE:-${XDG_RUNTIME_DIR:-$HOME/.local/state}/connmgr/auth}
echo "Content-Type: application/json" >"$state/headers"
post /handshake <<END | keep token sessionToken
{"auth": {"type": "local", "authFileContent": "$(cat "$auth_file")"}, "client": {"type": "api", "name": "examples"}}
END
echo "Authorization: Bearer $(cat "$state/token")" >>"$state/headers"
