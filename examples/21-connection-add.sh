#!/bin/sh
# Store a connection, here another shell on this machine. With validate it is opened first.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/add <<END | keep connection connection
{"name": "Example shell", "data": {"type": "local", "shell": "/bin/sh"}, "category": "$(cat "$state/category")", "validate": true}
END
