#!/bin/sh
# Encrypt a secret; the result may stand wherever a connection's data takes one.
set -eu
. "$(dirname "$0")/request.sh"

post /secret/encrypt <<END | tee "$state/secret.json"
{"value": "correct horse battery staple"}
END
