#!/bin/sh
# Decrypt the secret. The answer of /secret/encrypt is the request of /secret/decrypt.
set -eu
. "$(dirname "$0")/request.sh"

post /secret/decrypt <<END
$(cat "$state/secret.json")
END
