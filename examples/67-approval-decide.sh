#!/bin/sh
# Approve a request of a token once, and send it again with that token.
set -eu
. "$(dirname "$0")/request.sh"

post /approval/decide <<END
{"approval": "$(cat "$state/approval")", "decision": "once"}
END

curl -sS --fail-with-body -H @"$state/asking" --data-binary @- "$url/shell/exec" <<END
{"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "command": "echo approved", "start": true}
END
