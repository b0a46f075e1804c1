#!/bin/sh
# Who has run commands on this connection lately? The newest entries of the audit trail come first.
set -eu
. "$(dirname "$0")/request.sh"

post /audit/query <<END
{"connection": "$(cat "$state/connection")", "action": "shell.exec", "limit": 2}
END
