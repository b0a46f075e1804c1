#!/bin/sh
# Remove the category; connections that are still in it move to the default one.
set -eu
. "$(dirname "$0")/request.sh"

post /category/remove <<END
{"categories": ["$(cat "$state/category")"], "removeChildrenCategories": true, "removeContents": false}
END
