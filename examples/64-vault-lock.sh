#!/bin/sh
# Forget what this session has unlocked.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/lock <<END
{}
END
