#!/bin/sh
# Revoke a certificate by the serial number that the audit log and sshd's log have.
set -eu
. "$(dirname "$0")/request.sh"

post /ca/revoke <<END
{"name": "team", "certificates": ["4711"]}
END
