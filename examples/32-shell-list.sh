#!/bin/sh
# List the running shells of a connection: its own, and one with a name.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/start <<END
{"connection": "$(cat "$state/connection")", "session": "second"}
END
post /shell/list <<END
{"connection": "$(cat "$state/connection")"}
END
post /shell/stop <<END
{"connection": "$(cat "$state/connection")", "session": "second"}
END
