"""The sh scripts that work on files on the far side.

Each runs on a channel of its own, started as every process of the connection is, and so as the session's user. The
first two arguments are a random mark and the session's directory. What a script has to say is a line that begins with
the mark: ``ok`` and facts, or ``no``, the code of an error and perhaps details. What follows it is data.

They use what POSIX.1-2017 has, and beyond that what they can do without: stat in the ways of GNU, busybox and BSD, GNU
find's ``-printf``, a program that computes SHA-256, and open files by their descriptors in /proc.
"""

from __future__ import annotations

# A name that begins with a dash becomes ./-name; `~` is the user's home; what is relative begins at the session's
# directory. No other directory is stayed in, since the user might not enter it again. Errors are told by the system's
# own words (the locale is C) at the end of a program's message.
_PRELUDE = r"""
mark=$1 dir=$2; shift 2
unset CDPATH
say() { printf '%s %s\n' "$mark" "$*"; }
tidy() { :; }
no() { tidy; say no "$@"; exit 0; }
because() {
  case ${1##*: } in
    *"o space left"*|*"uota exceeded"*) no no_space;;
    *"ermission denied"*|*"not permitted"*|*"ead-only file"*) no permission_denied;;
    *"o such file"*|*"onexistent directory"*|*"irectory nonexistent"*) no no_such_file;;
    *"not empty"*) no directory_not_empty;;
    *"ile exists"*) no file_exists;;
    *"ot a directory"*|*"s a directory"*) no wrong_file_type;;
  esac
  no file_operation_failed "${1##*: }"
}
resolve() {
  cd /
  case $1 in
    "~"|"~/"*) [ "$HOME" ] || no no_such_directory; p=$HOME${1#"~"};;
    /*) p=$1;;
    *) cd -P "$dir" 2>/dev/null || no no_such_directory; p=./$1;;
  esac
}
trim() { p=${p%"${p##*[!/]}"}; p=${p:-/}; }
parent() {
  d=${p%/*}; d=${d:-/}; b=${p##*/}
  [ -d "$d" ] && return
  why=$(ls -dL -- "$d/." 2>&1 >/dev/null)
  case ${why##*: } in *"ermission denied"*) no permission_denied;; esac
  no no_such_directory
}
absent() { why=$(ls -d "$@" -- "$p" 2>&1 >/dev/null); because "$why"; }
present() { [ -e "$p" ] || [ -L "$p" ] || absent; }
"""

# The size and the content are those of one opened file, whatever takes its name meanwhile.
READ = (
    _PRELUDE
    + r"""
resolve "$1"
[ -e "$p" ] || absent -L
[ -f "$p" ] || no wrong_file_type
deliver() {
  n=$(stat -L -c %s /proc/self/fd/0 || stat -f %z || stat -L -c %s -- "$p" || wc -c <"$p") || no file_operation_failed
  say ok $n
  exec cat
}
deliver <"$p" 2>/dev/null
no permission_denied
"""
)
"""``path``. ``ok size``, then the content; the exit status is that of reading it."""

# The file is received beside its target, flushed while it is checked, and renamed over it once it is whole. Until then
# it is reached by its open descriptor, so that whoever else may write to the directory cannot put another file in its
# place. What a killed writer left behind is cleared by the next one: when the process in its name is gone, or after an
# hour of silence.
WRITE = (
    _PRELUDE
    + r"""
size=$2 sum=$3 mode=$4
{ read -r host </proc/sys/kernel/hostname || host=$(uname -n); } 2>/dev/null
alive() {
  if read -r w <"/proc/$1/stat"; then w=${w##*") "}; case $w in [ZX]*) return 1;; esac
  else kill -0 "$1" || { [ ! -d "/proc/$$" ] && ps -p "$1" >/dev/null; }; fi
}
clear_litter() {
  for t in ./.connmgr-[0-9]*; do
    [ -f "$t" ] || continue
    w=${t##*/.connmgr-}
    case $w in *-"$host"-*) alive "${w%%-*}" || rm -f -- "$t";; esac
    [ -z "$(find "$t" -prune -mmin +60)" ] || rm -f -- "$t"
  done
} 2>/dev/null
checksum() {
  case $size in ???????*) openssl dgst -sha256 "$1" && return;; esac
  sha256sum "$1" || openssl dgst -sha256 "$1" || shasum -a 256 "$1" || sha256 -q "$1"
} 2>/dev/null
flush() { why=$(sync -- "$1" 2>&1) || unflushed "$1"; }
unflushed() {
  case ${why##*: } in *"o space left"*|*"uota exceeded"*|*"nput/output error"*) because "$why";; esac
  fsync "$1" 2>/dev/null || sync
}
verify_and_flush() {
  found=$(echo "/sum/$(checksum "$f")." & why=$(sync -- "$f" 2>&1) && why=done; wait; echo "/sync/$why")
  case $found in /sum/.*|*"$sum"*) ;; *) no transfer_failed;; esac
  why=${found##*/sync/}
  [ "$why" = done ] || unflushed "$f"
}
overwrite() {
  why=$( { cat <"$f" >"$p"; } 2>&1) || because "$why"
  flush "$p"; tidy; say ok; exit 0
}
receive() {
  set +C
  f=/proc/self/fd/3; [ -e "$f" ] || f=$t
  how=cat; [ ! -t 0 ] || how="head -c $size"
  say ok
  why=$( { $how >&3; } 2>&1) || because "$why"
  [ "$(wc -c <"$f")" -eq "$size" ] || no transfer_failed
  verify_and_flush
  case $kept in
    "") umask "$mask"; why=$(chmod "${mode:-=rw}" "$f" 2>&1) || because "$why";;
    unknown) overwrite;;
    *) labels=; [ ! -e /sys/fs/selinux/enforce ] || labels=,context
      cp --attributes-only --preserve="mode,xattr$labels" -- "$p" "$f" 2>/dev/null
      chown "${kept#* }" "$f" 2>/dev/null || overwrite
      why=$(chmod "${kept%% *}" "$f" 2>&1) || because "$why";;
  esac
  [ ! -d "$p" ] || no wrong_file_type
  why=$(mv -f -- "$t" "$p" 2>&1) || case ${why##*: } in *busy*) overwrite;; *) because "$why";; esac
  flush .; say ok; exit 0
}
resolve "$1"
if [ -L "$p" ]; then p=$(readlink -f -- "$p" && echo x) || no no_such_directory; p=${p%??}; fi
parent
case $b in ""|.|..) no wrong_file_type;; esac
kept=
if [ -e "$p" ]; then
  [ -f "$p" ] || no wrong_file_type
  [ -w "$p" ] || no permission_denied
  kept=$( { stat -c '%a %u:%g' -- "$p" || stat -f '%Mp%Lp %u:%g' -- "$p"; } 2>/dev/null) || kept=unknown
fi
cd -P "$d" 2>/dev/null || no permission_denied
p=./$b
clear_litter
t=./.connmgr-$$-$host-$5
tidy() { rm -f -- "$t"; }
trap '[ ! -e "$t" ] || tidy' EXIT
trap 'exit 1' HUP INT TERM PIPE
mask=$(umask); umask 077; set -C
receive 3>"$t" 2>/dev/null
why=$( { : 3>"$t"; } 2>&1); because "$why"
"""
)
"""``path size sha256 mode nonce``. ``ok`` when it is ready for the content, and ``ok`` when that is in its place."""

# GNU find takes half of stat's time, but on a terminal it prints names otherwise than they are: never on one, then.
_DESCRIBING = r"""
if find . -prune -printf "" 2>/dev/null; then how=find format="$mark %m=%y:%s:%T@:%U:%G:%u:%g:/%p\n"
elif stat -c %n . >/dev/null 2>&1; then how=-c format="$mark %f:%s:%Y:%u:%g:%U:%G:/%n"
elif stat -f %N . >/dev/null 2>&1; then how=-f format="$mark %Xp:%z:%m:%u:%g:%Su:%Sg:/%N"
else no file_operation_failed "stat is not installed there."; fi
say ok
"""

LIST = (
    _PRELUDE
    + r"""
resolve "$1"
[ -e "$p" ] || absent -L
[ -d "$p" ] || no wrong_file_type
cd -P "$p" 2>/dev/null && [ -r . ] || no permission_denied
"""
    + _DESCRIBING
    + r"""
{
  if [ "$how" = find ]; then find . ! -name . -prune -printf "$format"
  elif find . -prune >/dev/null; then find . ! -name . -prune -exec stat "$how" "$format" -- {} +
  else
    for n in ./* ./.[!.]* ./..?*; do
      if [ -e "$n" ] || [ -L "$n" ]; then stat "$how" "$format" -- "$n"; fi
    done
  fi
} 2>/dev/null | cat
printf '%s end' "$mark"
"""
)
"""``path``. ``ok``, each entry after a mark: mode and type, size, time, ids, names, ``/./name``; a mark and ``end``."""

STAT = (
    _PRELUDE
    + r"""
resolve "$1"
present
[ -z "$2" ] || [ -e "$p" ] || absent -L
link=
[ ! -L "$p" ] || link=$(readlink -- "$p" && echo x)
"""
    + _DESCRIBING
    + r"""
{
  if [ "$how" = find ]; then find ${2:+-L} "$p" -prune -printf "$format"
  else stat ${2:+-L} "$how" "$format" -- "$p"; fi
} 2>/dev/null | cat
printf '%s target %s' "$mark" "$link"
"""
)
"""``path follow``. ``ok``, an entry as of LIST, and after the mark ``target`` with the link's own target."""

REMOVE = (
    _PRELUDE
    + r"""
resolve "$1"
present
[ ! -d "$p" ] || trim
if [ -d "$p" ] && [ ! -L "$p" ]; then
  if [ "$p" -ef / ]; then no permission_denied; fi 2>/dev/null
  case $(cd -P "$p" 2>/dev/null && pwd -P) in /|//) no permission_denied;; esac
  if [ "$2" ]; then why=$(rm -rf -- "$p" 2>&1); else why=$(rmdir -- "$p" 2>&1); fi || because "$why"
else
  why=$(rm -f -- "$p" 2>&1) || because "$why"
fi
say ok
"""
)
"""``path recursive``. ``ok``."""

MKDIR = (
    _PRELUDE
    + r"""
resolve "$1"
trim
if [ "$3" ]; then
  if [ -d "$p" ]; then say ok; exit 0; fi
else
  parent
  if [ -e "$p" ] || [ -L "$p" ]; then no file_exists; fi
fi
why=$(mkdir ${3:+-p} ${2:+-m "$2"} -- "$p" 2>&1) || because "$why"
say ok
"""
)
"""``path mode parents``. ``ok``."""

MOVE = (
    _PRELUDE
    + r"""
resolve "$1"; present; from=$p
case $from in ./*) from=$dir/$from;; esac
resolve "$2"; trim; parent
[ ! -d "$p" ] || no file_exists
if [ -e "$p" ] || [ -L "$p" ]; then [ "$3" ] || no file_exists; fi
why=$(mv -f -- "$from" "$p" 2>&1) || because "$why"
say ok
"""
)
"""``from to overwrite``. ``ok``."""

MAKE_TEMPORARY = (
    _PRELUDE
    + r"""
d=${TMPDIR:-/tmp}/connmgr-$1
why=$(mkdir -m 0700 -- "$d" 2>&1) || because "$why"
say ok "$d"
"""
)
"""``name``. ``ok`` and a new directory, 0700."""
