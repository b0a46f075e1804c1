#!/bin/sh
# Run a program with its words. No shell reads them: nothing is to be quoted but the JSON.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/exec <<END
{"connection": "$(cat "$state/connection")", "argv": ["printf", "%s\\n", "it's one  word", "*", "\$HOME"], "timeout": 10}
END
