#!/bin/sh
# Start a run: a command on many connections, in waves. It stops when a tenth of them have failed.
set -eu
. "$(dirname "$0")/request.sh"

post /run/start <<END | keep run run
{"connectionFilter": "renamed*", "command": "uname -s; exit 3", "name": "example", "waves": [1, "100%"], "stopAfter": "10%"}
END
