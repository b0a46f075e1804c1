#!/bin/sh
# Ask the machines of connections about themselves; the vault keeps what they say.
set -eu
. "$(dirname "$0")/request.sh"

post /fact/gather <<END
{"where": "env=prod", "parts": ["system"], "parallel": 8, "timeout": 20}
END
