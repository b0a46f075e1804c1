#!/bin/sh
# List the shells that run on a connection: its own, and one with a name, which is a shell beside it.
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
