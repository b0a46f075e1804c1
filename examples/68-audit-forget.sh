#!/bin/sh
# Have the vault forget an audit log that is missing; here one that it does not know, which is refused.
set -eu
. "$(dirname "$0")/request.sh"

# Not by post, which fails when a request is refused.
curl -sS -H @"$state/headers" --data-binary @- "$url/audit/forget" <<END
{"trail": "0f3a9c5be1d24786"}
END
