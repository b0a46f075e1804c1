#!/bin/sh
# Show the principals whose secrets this session may decrypt.
set -eu
. "$(dirname "$0")/request.sh"

post /vault/status <<END
{}
END
