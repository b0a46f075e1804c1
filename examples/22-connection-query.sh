#!/bin/sh
# Find connections by category, name and type.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/query <<END
{"categoryFilter": "examples", "connectionFilter": "example*", "typeFilter": "local"}
END
