# Becomes the program of terminal $1: the command $3 where $2 is command, else an interactive shell. The words from $4 on
# start the shell; without any it is the login shell.
CONNMGR_TERMINAL=$1
export CONNMGR_TERMINAL
kind=$2 command=$3
shift 3
command -v "${SHELL:-}" >/dev/null || SHELL=/bin/sh
[ $# -gt 0 ] || set -- "$SHELL"
case $kind in command) exec "$@" -c "$command";; esac
exec "$@" -l
