#!/bin/sh
# Describe categories, here the root.
set -eu
. "$(dirname "$0")/request.sh"

post /category/info <<END
{"categories": ["bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"]}
END
