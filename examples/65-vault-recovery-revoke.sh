#!/bin/sh
# Remove the recovery key, and its words from the disk; unlocking tells before that it was used.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/unlock <<END
{"user": "example", "passphrase": "third example passphrase"}
END
post /vault/recovery/revoke <<END
{"recovery": "$(field recovery <"$state/recovery.json")"}
END
rm "$state/recovery.json"
