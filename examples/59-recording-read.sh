#!/bin/sh
# Read the recording of the terminal as an asciicast, and print its header.
set -eu
. "$(dirname "$0")/request.sh"

post /recording/read <<END | head -n 1
{"recording": "$(cat "$state/terminal")"}
END
