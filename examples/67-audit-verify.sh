#!/bin/sh
# Verify that the audit log is as the daemon wrote it.
set -eu
. "$(dirname "$0")/request.sh"

post /audit/verify <<END
{}
END
