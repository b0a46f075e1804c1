#!/bin/sh
# End what was lent to the token. With "seconds" in place of "end", whoever has unlocked a vault user lends to it.
set -eu
. "$(dirname "$0")/request.sh"

post /token/lend <<END
{"id": "$(cat "$state/token-id")", "end": true}
END
