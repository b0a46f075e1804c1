#!/bin/sh
# Find the lines that have a text in the files of a directory.
set -eu
. "$(dirname "$0")/request.sh"

post /fs/search <<END
{"connection": "$(cat "$state/connection")", "path": "$state/files", "text": "Hello"}
END
