#!/bin/sh
# List recent commands on this connection, from the audit log; the newest come first.
set -eu
. "$(dirname "$0")/request.sh"

post /audit/query <<END
{"connection": "$(cat "$state/connection")", "action": "shell.exec", "limit": 2}
END
