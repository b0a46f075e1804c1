#!/bin/sh
# Add a user to the vault. From now on its secrets are opened for sessions that unlock a user only.
# The examples up to 65 are to be run together: the last one removes the user.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/user/add <<END
{"user": "example", "passphrase": "first example passphrase"}
END
