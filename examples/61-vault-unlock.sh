#!/bin/sh
# Unlock the user for this session.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/unlock <<END
{"user": "example", "passphrase": "first example passphrase"}
END
