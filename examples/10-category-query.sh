#!/bin/sh
# Find categories by path; * alone means all.
set -eu
. "$(dirname "$0")/request.sh"

post /category/query <<END
{"filter": "*"}
END
