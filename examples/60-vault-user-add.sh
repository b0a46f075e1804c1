#!/bin/sh
# Add a user to the vault. From now on only sessions that unlock a user can open secrets.
# Run the examples up to 65 together: the last one removes the user.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/user/add <<END
{"user": "example", "passphrase": "first example passphrase"}
END
