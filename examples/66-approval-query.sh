#!/bin/sh
# List the requests that wait for approval; a token with an asking rule has just sent one.
set -eu
. "$(dirname "$0")/request.sh"

{
    echo "Content-Type: application/json"
    printf "Authorization: Bearer "
    post /token/create <<END | field token
{"name": "asks", "expires": 600, "scopes": ["shell.any"], "rules": [{"effect": "ask", "text": "."}]}
END
} >"$state/asking"

curl -sS -H @"$state/asking" --data-binary @- "$url/shell/exec" <<END | field approval >"$state/approval"
{"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "command": "echo approved", "start": true}
END

post /approval/query <<END
{"states": ["pending"]}
END
