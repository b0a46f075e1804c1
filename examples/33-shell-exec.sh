#!/bin/sh
# Run a program by its words. No shell reads them, so nothing needs quotes but the JSON.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/exec <<END
{"connection": "$(cat "$state/connection")", "argv": ["printf", "%s\\n", "it's one  word", "*", "\$HOME"], "timeout": 10}
END
