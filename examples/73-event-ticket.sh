#!/bin/sh
# Get a ticket with which a browser can open the stream of events, once and within 30 seconds.
set -eu
. "$(dirname "$0")/request.sh"

post /event/ticket <<END
{}
END
