# Becomes the program of a stream, marked with $1 in its environment: $3 and on as they are where $2 is argv, the command
# $3 in the language of the login shell where it is command, and that shell itself where it is shell.
export CONNMGR_STREAM="$1"
command -v "${SHELL:-}" >/dev/null || SHELL=/bin/sh
case $2 in argv) shift 2; become "$@";; command) exec "$SHELL" -c "$3";; login) exec "$SHELL" -l;; esac
exec "$SHELL"
