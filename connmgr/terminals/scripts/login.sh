# Becomes the program of terminal $1. If $2 is argv, the program is the words from $4 on. Otherwise these words start a
# shell, by default the login shell; it runs the command $3 if $2 is command, and else is interactive.
CONNMGR_TERMINAL=$1
export CONNMGR_TERMINAL
kind=$2 command=$3
shift 3
case $kind in argv) become "$@";; esac
command -v "${SHELL:-}" >/dev/null || SHELL=/bin/sh
[ $# -gt 0 ] || set -- "$SHELL"
case $kind in command) exec "$@" -c "$command";; esac
exec "$@" -l
