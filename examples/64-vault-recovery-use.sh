#!/bin/sh
# Set a new passphrase by two of the three shares, without the old one.
set -eu
. "$(dirname "$0")/request.sh"

python3 -c '
import json, sys
shares = json.load(sys.stdin)["shares"]
print(json.dumps({"shares": [shares[2], shares[0]], "newPassphrase": "third example passphrase"}))
' <"$state/recovery.json" | post /vault/recovery/use
