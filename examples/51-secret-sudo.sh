#!/bin/sh
# Store the password that sudo asks for when a request has "elevate".
set -eu
. "$(dirname "$0")/request.sh"

post /secret/sudo <<END
{"connection": "$(cat "$state/connection")", "password": "correct horse battery staple"}
END
