#!/bin/sh
# Find the lines of recordings that contain a text.
set -eu
. "$(dirname "$0")/request.sh"

post /recording/search <<END
{"contains": "hello, ada", "recordings": ["$(cat "$state/terminal")"]}
END
