#!/bin/sh
# Make an authority for SSH certificates, and print the line by which hosts trust it.
set -eu
. "$(dirname "$0")/request.sh"

post /ca/init <<END
{"name": "team", "seconds": 300}
END
