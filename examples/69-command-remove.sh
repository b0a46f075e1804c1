#!/bin/sh
# Remove a saved command.
set -eu
. "$(dirname "$0")/request.sh"

post /command/remove <<END
{"name": "greet"}
END
