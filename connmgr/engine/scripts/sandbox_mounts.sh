# In namespaces of its own, makes each mount read-only and hides what takes writes all the same: devices, Unix sockets,
# the directories for temporary files. Then becomes the program, as a child of process 1, without capabilities.
PATH=$1 path=$2 jobs=$3 here=$4 sockets=$5 root=$6
shift 6
fail() { echo "$*" >&2; exit 126; }
own() { mount -t tmpfs -o "nosuid,nodev,$2" tmpfs "$1" || fail "no private $1"; }
was=$PWD
own /run mode=0755
mkdir /run/dev /run/here
[ ! "$here" ] || mount --bind "$here" /run/here || fail "the directory cannot be shown"
for n in null zero full random urandom; do
  : >"/run/dev/$n"
  mount --bind "/dev/$n" "/run/dev/$n" || fail "no private /dev/$n"
done
ln -s /proc/self/fd /run/dev/fd
for n in stdin:0 stdout:1 stderr:2; do ln -s "fd/${n#*:}" "/run/dev/${n%:*}"; done
mkdir /run/dev/shm
mount --rbind /run/dev /dev || fail "no private /dev"
own /dev/shm mode=1777
mount -t proc -o nosuid,nodev,noexec proc /proc || fail "no private /proc"
# Files of root there need no capability (proc_sys_permission in Linux).
for n in sys sysrq-trigger irq bus fs scsi acpi; do
  [ ! -e "/proc/$n" ] || mount --bind "/proc/$n" "/proc/$n" || fail "/proc/$n cannot be closed"
done
own /tmp mode=1777
own /var/tmp mode=1777
[ "$jobs" = /run ] || own "$jobs" mode=0700
[ ! "$here" ] || { mkdir -p -- "$here" && mount --bind /run/here "$here"; } || fail "the directory cannot be shown"
# A socket takes connections whether or not its file system can be written.
: >/run/none
echo "$sockets" | while read -r name; do
  [ ! -S "$name" ] || mount --bind /run/none "$name" || exit
done || fail "a socket cannot be hidden"
own /run mode=0755
mount_of() { while read -r name value; do [ "$name" != mnt_id: ] || { echo "$value"; return; }; done </proc/self/fdinfo/5; }
each_mount() {
  while read -r id _ _ _ name options _; do
    at=$(printf %bx "$name") && at=${at%x}
    "$@"
  done </proc/self/mountinfo
}
is_own() { case $at in /tmp|/var/tmp|/dev/shm) [ "$at" != "$here" ];; *) ! :;; esac; }
close() {
  ! is_own || return 0
  flags= nodev=,nodev
  case $at in /dev/?*) nodev=;; esac
  for n in nosuid noexec noatime nodiratime relatime; do case ,$options, in *,"$n",*) flags=$flags,$n;; esac; done
  case ,$options, in *,nodev,*) nodev=,nodev;; esac
  mount -o "remount,bind,ro$nodev$flags" "$at" 2>/dev/null
  return 0
}
# A mount that others cover cannot be closed by its path, and cannot be reached by it.
is_closed() {
  case ,$options, in *,ro,*) return;; esac
  # A backslash in the name, which not every printf reads: another directory would be looked at.
  case $name in *\\134*) echo "$name"; return;; esac
  ! is_own || return 0
  case $at in /dev/?*) return;; esac
  { [ "$(mount_of)" != "$id" ] || echo "$at"; } 2>/dev/null 5<"$at" || [ ! -e "$at" ] || echo "$at"
}
each_mount close
open=$(each_mount is_closed)
[ ! "$open" ] || fail "$open cannot be made read-only"
cd "$was" || fail "the directory $was is hidden"
drop="-all${root:+,+dac_read_search}"
setsid=$(command -v setsid) setpriv=$(command -v setpriv)
export PATH="$path"
exec "$setsid" --fork --wait "$setpriv" --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set="$drop" -- "$@"
