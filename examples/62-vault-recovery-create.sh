#!/bin/sh
# Make a recovery key for the user; its words are in the answer, once, and belong on paper.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/recovery/create <<END | tee "$state/recovery.json"
{"user": "example", "passphrase": "first example passphrase", "shares": 3, "threshold": 2}
END
