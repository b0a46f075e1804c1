#!/bin/sh
# Replace the words of the recovery key by new ones: the old ones open nothing any more.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/recovery/rotate <<END | tee "$state/recovery-2.json"
{"recovery": "$(field recovery <"$state/recovery.json")", "passphrase": "second example passphrase"}
END
mv "$state/recovery-2.json" "$state/recovery.json"
