#!/bin/sh
# Label a connection, and find it by its label.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/label <<END
{"connections": ["$(cat "$state/connection")"], "labels": {"env": "prod", "tier": "front"}, "remove": ["canary"]}
END
post /connection/query <<END
{"categoryFilter": "*", "connectionFilter": "*", "typeFilter": "*", "where": "env=prod and not canary"}
END
