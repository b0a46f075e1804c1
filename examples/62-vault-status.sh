#!/bin/sh
# What may this session decrypt?
set -eu
. "$(dirname "$0")/request.sh"

post /vault/status <<END
{}
END
