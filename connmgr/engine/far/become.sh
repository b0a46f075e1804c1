# Becomes the program $1 with the words "$@" in any shell of the Bourne family. Some take a builtin for a program.
# shellcheck disable=SC2123
become(){ case "$1" in */*) exec "$@";; -*) ;; *) (PATH=/nowhere;exec :) 2>/dev/null||exec "$@";; esac;_cm_exec "$@";}
