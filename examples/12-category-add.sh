#!/bin/sh
# Add a category below the root; repeated, it returns the same id.
set -eu
. "$(dirname "$0")/request.sh"

post /category/add <<END | keep category category
{"name": "Examples", "parent": "bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"}
END
