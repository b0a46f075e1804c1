# Announces the far side's shell and becomes the supervisor. $1 is a nonce, the rest the shell's argv, or nothing for the
# login shell. Run again by a supervisor that has not been greeted yet, it only starts that one anew. Its lines are
# joined to one, without single quotes: a login shell of another language (fish, csh) hands it on within those.
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
