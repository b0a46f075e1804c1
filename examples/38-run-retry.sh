#!/bin/sh
# Run again what did not succeed, as a new run, which names the old.
set -eu
. "$(dirname "$0")/request.sh"

post /run/retry <<END | keep retried run
{"run": "$(cat "$state/run")", "states": ["failed", "unreachable"]}
END
post /run/wait <<END
{"run": "$(cat "$state/retried")"}
END
