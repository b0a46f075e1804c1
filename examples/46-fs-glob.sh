#!/bin/sh
# List the files that a pattern matches.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/glob <<END
{"connection": "$(cat "$state/connection")", "pattern": "$state/files/*"}
END
