#!/bin/sh
# Remove both jobs, with what the machine keeps of them.
set -eu
. "$(dirname "$0")/request.sh"

for name in job killed; do
    post /job/remove <<END
{"job": "$(cat "$state/$name")"}
END
done
