#!/bin/sh
# Run a command on many connections at once. Each has a line when it has finished; the last line has the counts.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/broadcast <<END
{"connectionFilter": "renamed*", "command": "uname -s", "timeout": 10}
END
