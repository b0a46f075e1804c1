#!/bin/sh
# Get a ticket that opens the page in a browser, at /#login=TICKET, once and within 60 seconds.
set -eu
. "$(dirname "$0")/request.sh"

post /web/ticket </dev/null | keep page-ticket ticket
