#!/bin/sh
# Change the user's passphrase; the secrets stay as they are.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/user/passphrase <<END
{"user": "example", "passphrase": "first example passphrase", "newPassphrase": "second example passphrase"}
END
