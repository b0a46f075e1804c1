#!/bin/sh
# Is the audit trail as the daemon wrote it?
set -eu
. "$(dirname "$0")/request.sh"

post /audit/verify <<END
{}
END
