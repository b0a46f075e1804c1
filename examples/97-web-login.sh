#!/bin/sh
# Exchange the ticket for a session of the page, as the page itself does.
set -eu
. "$(dirname "$0")/request.sh"

post /web/login <<END | keep page-token sessionToken
{"ticket": "$(cat "$state/page-ticket")"}
END
