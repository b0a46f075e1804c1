#!/bin/sh
# Lock the user of this session again.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/lock <<END
{}
END
