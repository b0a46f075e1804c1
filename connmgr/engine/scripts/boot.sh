# Announces the remote host's shell and becomes the supervisor. $1 is a nonce, the rest the shell's argv; without one it is
# the login shell. When a supervisor that was not greeted yet runs this script again, it only restarts that supervisor.
# The lines are joined into one, without single quotes, because a login shell of another language (fish, csh) passes the
# script on in single quotes. Variables of any other name could be exported, and would reach the session changed.
#
# bash, also as sh, has functions of any name from its environment. The session keeps them, but for the names of the
# builtins that call others: it calls its own words by these.
_cm_nonce=$1
shift
_cm_own=
case ${BASH_VERSION-} in ?*) unset -f builtin command; _cm_own=builtin;; esac
case ${CONNMGR_BOOT-} in "$_cm_nonce") exec >&8 2>&9;; esac
export CONNMGR_BOOT="$_cm_nonce"
case $# in 0) command -v "${SHELL:-}" >/dev/null || SHELL=/bin/sh; set -- "$SHELL";; esac
_cm_word=${1##*/}
case "$_cm_word ${2:-}" in "busybox sh"|"busybox ash") _cm_word=ash;; esac
_cm_path=$(command -v "$1") || _cm_word=missing
$_cm_own echo
$_cm_own echo "$_cm_nonce $_cm_word $_cm_path"
case $_cm_word in @supervisors@@interpreted@) exec /bin/sh @aside@;; esac
