#!/bin/sh
# Encrypt a secret; the result may be used in a connection's data.
set -eu
. "$(dirname "$0")/request.sh"

post /secret/encrypt <<END | tee "$state/secret.json"
{"value": "correct horse battery staple"}
END
