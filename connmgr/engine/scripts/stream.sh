# Becomes the program of a stream, with the mark $1 and its own number in its environment. If $2 is argv, the program is $3 and its words
# follow; if it is command, the login shell runs the command $3; if it is shell, the program is the login shell.
export CONNMGR_STREAM="$1.$$"
command -v "${SHELL:-}" >/dev/null || SHELL=/bin/sh
case $2 in argv) shift 2; become "$@";; command) exec "$SHELL" -c "$3";; login) exec "$SHELL" -l;; esac
exec "$SHELL"
