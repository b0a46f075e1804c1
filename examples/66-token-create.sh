#!/bin/sh
# Create a token for a monitoring script that may run two programs on one machine for an hour, and use it.
set -eu
. "$(dirname "$0")/request.sh"

post /token/create <<'END' | keep token-id id >"$state/token-created"
{
    "name": "monitoring",
    "expires": 3600,
    "scopes": ["connection.read", "shell.argv"],
    "connections": ["local machine"],
    "rules": [
        {"effect": "allow", "argv": ["/bin/df", "-h", {"re": "/[A-Za-z0-9/]*"}]},
        {"effect": "allow", "argv": ["uptime"]}
    ]
}
END
{
    echo "Content-Type: application/json"
    printf "Authorization: Bearer "
    field token <"$state/token-created"
} >"$state/monitoring"
rm "$state/token-created" "$state/answer.json"

curl -sS --fail-with-body -H @"$state/monitoring" --data-binary @- "$url/shell/exec" <<'END'
{"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "argv": ["df", "-h", "/"], "start": true}
END
# Nothing else is allowed.
curl -sS -H @"$state/monitoring" --data-binary @- "$url/shell/exec" <<'END'
{"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "argv": ["/bin/df", "-h", "/", "/etc"]}
END
