#!/bin/sh
# Open a terminal: its program runs on without clients. This one asks a question.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/open <<END | keep terminal terminal
{"connection": "$(cat "$state/connection")", "command": "printf 'Name? '; read -r name; printf 'Hello, %s\\\\n' \"\$name\"; cat", "columns": 60, "rows": 4}
END
