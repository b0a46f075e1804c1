# Announces the remote host's shell and becomes the supervisor. $1 is a nonce, the rest the shell's argv; without one it is
# the login shell. When a supervisor that was not greeted yet runs this script again, it only restarts that supervisor.
# The lines are joined into one, without single quotes, because a login shell of another language (fish, csh) passes the
# script on in single quotes.
n=$1
shift
[ "${CONNMGR_BOOT-}" = "$n" ] && exec >&8 2>&9
export CONNMGR_BOOT="$n"
[ $# -gt 0 ] || { command -v "${SHELL:-}" >/dev/null || SHELL=/bin/sh; set -- "$SHELL"; }
w=${1##*/}
case "$w ${2:-}" in "busybox sh"|"busybox ash") w=ash;; esac
p=$(command -v "$1") || w=missing
echo
echo "$n $w $p"
case $w in @supervisors@@interpreted@) exec /bin/sh @aside@;; esac
