#!/bin/sh
# Decrypt it again. The answer of /secret/encrypt is just what /secret/decrypt takes.
set -eu
. "$(dirname "$0")/request.sh"

post /secret/decrypt <<END
$(cat "$state/secret.json")
END
