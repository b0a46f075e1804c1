#!/bin/sh
# Find jobs by name, and describe one.
set -eu
. "$(dirname "$0")/request.sh"

post /job/query <<END
{"connectionFilter": "*", "name": "example"}
END
post /job/info <<END
{"job": "$(cat "$state/job")"}
END
