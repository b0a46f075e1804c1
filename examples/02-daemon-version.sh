#!/bin/sh
# Which API and which connmgr is this?
set -eu
. "$(dirname "$0")/request.sh"

post /daemon/version <<END
{}
END
