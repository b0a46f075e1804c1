#!/bin/sh
# Put the file back, unless somebody has changed it since.
set -eu
. "$(dirname "$0")/request.sh"

post /undo/restore <<END
{"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "changes": ["$(cat "$state/change")"]}
END
rm "$state/changed" "$state/change" "$state/editor"
