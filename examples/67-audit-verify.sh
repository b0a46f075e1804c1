#!/bin/sh
# Verify that the audit trail is as the daemon wrote it.
set -eu
. "$(dirname "$0")/request.sh"

post /audit/verify <<END
{}
END
