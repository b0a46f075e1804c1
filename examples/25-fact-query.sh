#!/bin/sh
# Read facts about machines, those of the machines that a condition on labels and facts chooses.
set -eu
. "$(dirname "$0")/request.sh"

post /fact/query <<END
{"where": "env=prod and cpu.count>=1", "names": ["os.*", "arch", "memory.total"]}
END
