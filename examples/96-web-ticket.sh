#!/bin/sh
# Get a ticket that opens the page in a browser, at /#login=TICKET, once and within 60 seconds.
set -eu
. "$(dirname "$0")/request.sh"

post /web/ticket <<END | keep page-ticket ticket
{"sameUser": true}
END
