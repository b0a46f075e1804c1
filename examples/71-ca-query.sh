#!/bin/sh
# List the signers of SSH certificates.
set -eu
. "$(dirname "$0")/request.sh"

post /ca/query <<END
{}
END
