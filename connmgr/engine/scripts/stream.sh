# Becomes the program of a stream, with the mark $1 and its own number in its environment. If $2 is argv, the program is
# $3 and its words follow; if it is command, the login shell runs the command $3; if it is login, the program is the
# login shell. If it is words, the words of the command $3 follow: this shell runs them itself where the login shell
# would read no file first and understand them alike, since another shell takes longer to start than many a command.
export CONNMGR_STREAM="$1.$$"
command -v "${SHELL:-}" >/dev/null || SHELL=/bin/sh
case $2 in words) case ${SHELL##*/}${BASH_ENV-}${BASH_VERSION-} in ash|bash|dash|sh) shift 3; case $1 in false|true) "$1"; exit;; *) exec "$@";; esac;; esac;; esac
case $2 in argv) shift 2; become "$@";; command|words) exec "$SHELL" -c "$3";; login) exec "$SHELL" -l;; esac
exec "$SHELL"
