#!/bin/sh
# Log in to a connection. A client lends passphrases of keys and its ssh-agent here, after an error has named them.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/login <<END
{"connection": "$(cat "$state/connection")"}
END
