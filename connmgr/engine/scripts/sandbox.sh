# Runs a program so that it can change nothing on this machine, or says why not, after the mark $1, and runs nothing. $2
# is the filter of system calls for bwrap, in octal escapes; $3 is sandbox_mounts.sh; $4 is the directory for the state of
# programs, empty if the variables here tell; the rest is the program. It sees all files, read-only, and has a private
# /tmp, /dev and /proc, no network, no other process, no Unix socket and no terminal.
#
# Each way is tried with a program that does nothing first: what fails then has run nothing. No variable of whoever asked
# has been set here; they are set by the program's own words, inside.
mark=$1 filter=$2 mounts=$3 state=$4
shift 4
exec 3<&- 4<&- 5<&- 6<&- 7<&0 8<&- 9<&-
system=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin
which() { PATH=$system command -v "$1"; }
root=
[ "$("$(which id)" -u)" != 0 ] || root=1
# Named pipes of other jobs, and what runs here for the daemon: a program could write to them.
jobs=${state:-${XDG_STATE_HOME:-${HOME:-/nonexistent}/.local/state}}/connmgr
[ -d "$jobs" ] || jobs=/run
here=
# Where it is, not how it is called: a link below /tmp may lead to such a pipe.
cd -P . && case $PWD/ in "$jobs"/*) ;; /tmp/*|/var/tmp/*) here=$PWD;; esac
with_bwrap() {
  # shellcheck disable=SC2059,SC2086 # the filter is a format; several options
  printf "$filter" | (
    exec 9<&0 0<&7 7<&-
    exec "$bwrap" --die-with-parent --new-session --unshare-ipc --unshare-pid --unshare-net --unshare-uts \
      --unshare-cgroup-try $users --cap-drop ALL $reads --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --tmpfs /var/tmp \
      --tmpfs /run --ro-bind-try /run/current-system /run/current-system --tmpfs "$jobs" --remount-ro "$jobs" \
      ${here:+--ro-bind "$here" "$here"} --seccomp 9 --chdir "$PWD" -- "$@"
  )
}
with_unshare() {
  # shellcheck disable=SC2086 # several options
  "$unshare" --mount --pid --fork --kill-child --ipc --uts --net --propagation private $users \
    -- /bin/sh -c "$mounts" sandbox "$system" "$PATH" "$jobs" "$here" "$sockets" "$root" "$@"
}
why=
if bwrap=$(which bwrap); then
  if [ "$root" ]; then users='' reads='--cap-add CAP_DAC_READ_SEARCH'; else users=--unshare-user reads=; fi
  if found=$(with_bwrap /bin/sh -c : 2>&1); then with_bwrap "$@"; exit; fi
  why="bwrap fails (${found##*"
"})"
fi
if unshare=$(which unshare) && which setpriv >/dev/null && which setsid >/dev/null && [ -r /proc/self/mountinfo ]; then
  if [ "$root" ]; then users=--cgroup; else users='--user --map-current-user --keep-caps'; fi
  # The network's namespace decides which sockets are listed.
  sockets=$(while read -r _ _ _ _ _ _ _ name; do case $name in /*) [ ! -S "$name" ] || echo "$name";; esac; done </proc/net/unix)
  if found=$(with_unshare /bin/sh -c : 2>&1); then
    exec 0<&7 7<&-
    with_unshare "$@"
    exit
  fi
  why="${why:-there is no bwrap}, unshare fails (${found##*"
"})"
fi
echo "$mark: ${why:-there is neither bwrap nor unshare with setpriv and setsid}" >&2
exit 126
