#!/bin/sh
# Remove the user, in a session that has unlocked one.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/unlock <<END
{"user": "example", "passphrase": "third example passphrase"}
END
post /vault/user/remove <<END
{"user": "example"}
END
