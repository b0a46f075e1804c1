# Becomes the program of terminal $1: the words from $4 on where $2 is argv. Otherwise these start a shell, without any the
# login shell, which runs the command $3 where $2 is command, and is interactive where it is not.
CONNMGR_TERMINAL=$1
export CONNMGR_TERMINAL
kind=$2 command=$3
shift 3
case $kind in argv) become "$@";; esac
command -v "${SHELL:-}" >/dev/null || SHELL=/bin/sh
[ $# -gt 0 ] || set -- "$SHELL"
case $kind in command) exec "$@" -c "$command";; esac
exec "$@" -l
