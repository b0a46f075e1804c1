#!/bin/sh
# Remove both jobs, and their files on the machine.
set -eu
. "$(dirname "$0")/request.sh"

for name in job killed; do
    post /job/remove <<END
{"job": "$(cat "$state/$name")"}
END
done
