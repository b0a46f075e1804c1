#!/bin/sh
# Run a command on many connections at once. Each answers with a line when it is done; the last line has the counts.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/broadcast <<END
{"connectionFilter": "renamed*", "command": "uname -s", "timeout": 10}
END
