#!/bin/sh
# Renew the token for another week, and list all tokens.
set -eu
. "$(dirname "$0")/request.sh"

post /token/renew <<END
{"id": "$(cat "$state/token-id")", "expires": 604800}
END

post /token/query <<END
{}
END
