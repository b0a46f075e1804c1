#!/bin/sh
# Make a script from a blob, which lasts as long as the shell, and run it.
set -eu
. "$(dirname "$0")/request.sh"

printf '#!/bin/sh\necho "I am $0"\n' |
    curl -sS --fail-with-body -H @"$state/headers" -H "Content-Type: text/x-shellscript" --data-binary @- "$url/fs/blob" |
    keep blob blob >/dev/null
post /fs/script <<END | keep script path
{"connection": "$(cat "$state/connection")", "blob": "$(cat "$state/blob")"}
END
post /shell/exec <<END
{"connection": "$(cat "$state/connection")", "command": "$(cat "$state/script")"}
END
