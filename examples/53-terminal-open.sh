#!/bin/sh
# Open a terminal, and record it: its program runs on without clients. This one asks a question.
set -eu
. "$(dirname "$0")/request.sh"

post /terminal/open <<END | keep terminal terminal
{"connection": "$(cat "$state/connection")", "command": "printf 'Name? '; read -r name; printf 'Hello, %s\\\\n' \"\$name\"; cat", "columns": 60, "rows": 4, "record": true}
END
