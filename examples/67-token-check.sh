#!/bin/sh
# Show which rule would decide about a request, without running it. The holder of a token may do this too.
set -eu
. "$(dirname "$0")/request.sh"

post /token/check <<END
{
    "id": "$(cat "$state/token-id")",
    "path": "/shell/exec",
    "request": {"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "command": "uptime"}
}
END
