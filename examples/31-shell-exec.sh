#!/bin/sh
# Run a command in the shell. A command that fails is not an error: the answer has its exit code.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/exec <<END
{"connection": "$(cat "$state/connection")", "command": "uname -s; echo oops >&2; exit 3", "timeout": 10}
END
