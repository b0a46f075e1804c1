#!/bin/sh
# Save a command with a parameter, and run it.
set -eu
. "$(dirname "$0")/request.sh"

post /command/save <<END
{"name": "greet", "argv": ["printf", "%s", {"text": "Hello, {name}"}], "parameters": {"name": {"re": "[A-Z][a-z]+"}}}
END

post /shell/exec <<END
{"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "saved": {"name": "greet", "arguments": {"name": "Ada"}}, "start": true}
END
