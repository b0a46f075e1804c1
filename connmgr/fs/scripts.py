"""The programs, in the language of sh, that work on files on the far side.

They run in a helper, started as every process of the connection is, and so as the session's user. The first argument is
the session's directory. What a program has to say is a line that begins with a random mark: ``ok`` and facts, or
``no``, the code of an error and perhaps details. What follows it is data.

They use what POSIX.1-2017 has, and beyond that what they can do without: stat in the ways of GNU, busybox and BSD, GNU
find's ``-printf``, a program that computes SHA-256, and open files by their descriptors in /proc.
"""

from __future__ import annotations

from connmgr.engine.helper import Program

# A name that begins with a dash becomes ./-name; `~` is the user's home; what is relative begins at the session's
# directory. No other directory is stayed in, since the user might not enter it again. Errors are told by the system's
# own words (the locale is C) at the end of a program's message. What takes another's name never goes into a directory
# that somebody has put there meanwhile: GNU's and busybox's mv know -T for that, BSD's -h.
_PRELUDE = r"""
unset CDPATH
say() { printf '%s %s\n' "$mark" "$*"; }
tidy() { :; }
no() { tidy; say no "$@"; exit ${receiving:-0}; }
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
replace() {
  for o in -fT -fh -f; do
    why=$(mv $o -- "$1" "$2" 2>&1) && return
    case $why in "mv: "*"nvalid option"*|"mv: illegal option"*|"mv: "*"nknown option"*) ;; *) return 1;; esac
  done
  return 1
}
"""


def _program(name: str, body: str, *, setup: str = "", fed: bool = False) -> Program:
    return Program(f"fs_{name}", _PRELUDE, f"dir=$1; shift{body}", setup, fed)


# The size and the content are those of one opened file, whatever takes its name meanwhile.
READ = _program(
    "read",
    r"""
resolve "$1"
[ -e "$p" ] || absent -L
[ -f "$p" ] || no wrong_file_type
deliver() {
  n=$(stat -L -c %s /proc/self/fd/0 || stat -f %z || stat -L -c %s -- "$p" || wc -c <"$p") || no file_operation_failed
  [ ! -e /proc/self/fd/0 ] || [ -f /proc/self/fd/0 ] || no wrong_file_type
  say ok $n
  cat
  exit
}
deliver <"$p" 2>/dev/null
no permission_denied
""",
)
"""``path``. ``ok size``, then the content; it succeeds if that can be read to its end."""

# Whoever else may write to the directory may put another file, a link or a directory in the place of ours, of the
# target or of the directory at any moment. So the directory is entered before anything in it is looked at. The file is
# received beside its target, and is reached by its open descriptor alone until it is renamed, whole and on disk; then
# it is compared with what bears the name. A target is written in place, where it must be, by the descriptor of the file
# that was looked at. What a killed writer left is cleared by the next one, when the process in its name is gone or
# after a silent hour: files of the user's own, and of so many names as take milliseconds.
WRITE = _program(
    "write",
    r"""
size=$2 sum=$3 mode=$4 block=$6 blocks=$7 rest=$8
{ read -r host </proc/sys/kernel/hostname || host=$(uname -n); } 2>/dev/null
alive() {
  if read -r w <"/proc/$1/stat"; then w=${w##*") "}; case $w in [ZX]*) return 1;; esac
  else kill -0 "$1" || { [ ! -d "/proc/$$" ] && ps -p "$1" >/dev/null; }; fi
}
clear_litter() {
  looked=0 dead= silent=
  for t in ./.connmgr-[0-9]*; do
    [ $looked -lt 1000 ] || break
    looked=$((looked + 1))
    case ${t#./} in *[!A-Za-z0-9._-]*) continue;; esac
    [ -O "$t" ] && [ -f "$t" ] && [ ! -L "$t" ] || continue
    w=${t##*/.connmgr-}
    case $w in
      *-"$host"-*) if alive "${w%%-*}"; then silent="$silent $t"; else dead="$dead $t"; fi;;
      *) silent="$silent $t";;
    esac
  done
  [ ! "$dead" ] || rm -f -- $dead
  [ ! "$silent" ] || find $silent -prune -mmin +60 -exec rm -f -- {} \;
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
identity() { stat -L -c %d:%i /proc/self/fd/0 || stat -f %d:%i; } 2>/dev/null
overwrite() {
  { in_place; } 4>>"$p" 2>/dev/null
  no permission_denied
}
in_place() {
  [ "$(identity <&4)" = "$found_at" ] || swapped
  to=/proc/self/fd/4; [ -e "$to" ] || to=$p
  why=$( { cat <"$f" >"$to"; } 2>&1) || because "$why"
  flush "$to"; tidy; say ok; exit 0
}
swapped() { no file_operation_failed "Somebody else replaced the file or its directory meanwhile."; }
arrived() {
  if [ "$f" = "$t" ]; then [ "$(stat -f %d:%i <&3)" = "$(stat -f %d:%i -- "$p")" ] && return
  else [ "$f" -ef "$p" ] && return; fi
  # It may have arrived, and been replaced by the next writer.
  o=$(readlink "$f"); o=${o%" (deleted)"}
  [ "${o##*/}" = "$b" ]
} 2>/dev/null
has_blocks() { [ "$blocks" != 0 ] && dd count=0 iflag=fullblock </dev/null >/dev/null 2>&1; }
content() {
  if has_blocks; then dd bs="$block" count="$blocks" iflag=fullblock; else rest=$size; fi &&
  { [ "$rest" = 0 ] || head -c "$rest"; }
}
receive() {
  set +C
  f=/proc/self/fd/3 nofollow=
  [ -e "$f" ] || f=$t nofollow=-h
  receiving=1
  say ok
  why=$( { content >&3; } 2>&1) || because "$why"
  [ "$(wc -c <"$f")" -eq "$size" ] || no transfer_failed
  verify_and_flush
  case $kept in
    "") umask "$mask"; why=$(chmod "${mode:-=rw}" "$f" 2>&1) || because "$why";;
    unknown) overwrite;;
    *) labels=; [ ! -e /sys/fs/selinux/enforce ] || labels=,context
      cp --attributes-only --preserve="mode,xattr$labels" -- "$p" "$f" 2>/dev/null
      chown $nofollow "${kept#* }" "$f" 2>/dev/null || overwrite
      why=$(chmod "${kept%% *}" "$f" 2>&1) || because "$why";;
  esac
  [ ! -d "$p" ] || no wrong_file_type
  replace "$t" "$p" || case ${why##*: } in *busy*) overwrite;; *) because "$why";; esac
  arrived || swapped
  flush .; say ok; exit 0
}
resolve "$1"
if [ -L "$p" ]; then p=$(readlink -f -- "$p" && echo x) || no no_such_directory; p=${p%??}; fi
parent
case $b in ""|.|..) no wrong_file_type;; esac
cd -P "$d" 2>/dev/null || no permission_denied
p=./$b
[ ! -L "$p" ] || swapped
kept= found_at=
if [ -e "$p" ]; then
  [ -f "$p" ] || no wrong_file_type
  [ -w "$p" ] || no permission_denied
  kept=$( { stat -c '%a %u:%g %d:%i' -- "$p" || stat -f '%Mp%Lp %u:%g %d:%i' -- "$p"; } 2>/dev/null) || kept=unknown
  case $kept in *:*:*) found_at=${kept##* } kept=${kept% *};; esac
fi
clear_litter
{ read -r self n </proc/self/stat || self=$(exec sh -c 'echo $PPID'); } 2>/dev/null
t=./.connmgr-$self-$host-$5
tidy() { rm -f -- "$t"; }
trap '[ ! -e "$t" ] || tidy' EXIT
trap 'exit 1' HUP INT TERM PIPE
mask=$(umask); umask 077; set -C
receive 3>"$t" 2>/dev/null
why=$( { : 3>"$t"; } 2>&1); because "$why"
""",
    fed=True,
)
"""``path size sha256 mode nonce``, and the size as that of a block, a number of blocks and a rest, in bytes.

``ok`` when it is ready for the content, and ``ok`` when that is in its place.
"""

# GNU find takes half of stat's time.
_FIND_OUT_HOW = r"""
if find / -prune -printf ""; then how=find
elif stat -c %n /; then how=-c
elif stat -f %N /; then how=-f
else how=; fi </dev/null >/dev/null 2>&1
"""

# On a terminal find prints names otherwise than they are: never on one, then.
_DESCRIBING = r"""
case $how in
  find) format="$mark %m=%y:%s:%T@:%U:%G:%u:%g:/%p\n";;
  -c) format="$mark %f:%s:%Y:%u:%g:%U:%G:/%n";;
  -f) format="$mark %Xp:%z:%m:%u:%g:%Su:%Sg:/%N";;
  *) no file_operation_failed "stat is not installed there.";;
esac
say ok
if [ -t 1 ]; then describe | cat; else describe; fi 2>/dev/null
"""

LIST = _program(
    "list",
    r"""
resolve "$1"
[ -e "$p" ] || absent -L
[ -d "$p" ] || no wrong_file_type
cd -P "$p" 2>/dev/null && [ -r . ] || no permission_denied
describe() {
  if [ "$how" = find ]; then find . ! -name . -prune -printf "$format"
  elif find . -prune >/dev/null; then find . ! -name . -prune -exec stat "$how" "$format" -- {} +
  else
    for n in ./* ./.[!.]* ./..?*; do
      if [ -e "$n" ] || [ -L "$n" ]; then stat "$how" "$format" -- "$n"; fi
    done
  fi
}
"""
    + _DESCRIBING
    + r"""
printf '%s end' "$mark"
""",
    setup=_FIND_OUT_HOW,
)
"""``path``. ``ok``, each entry after a mark: mode and type, size, time, ids, names, ``/./name``; a mark and ``end``."""

STAT = _program(
    "stat",
    r"""
resolve "$1"
present
[ -z "$2" ] || [ -e "$p" ] || absent -L
link=
[ ! -L "$p" ] || link=$(readlink -- "$p" && echo x)
follow=${2:+-L}
describe() {
  if [ "$how" = find ]; then find $follow "$p" -prune -printf "$format"
  else stat $follow "$how" "$format" -- "$p"; fi
}
"""
    + _DESCRIBING
    + r"""
printf '%s target %s' "$mark" "$link"
""",
    setup=_FIND_OUT_HOW,
)
"""``path follow``. ``ok``, an entry as of LIST, and after the mark ``target`` with the link's own target."""

REMOVE = _program(
    "remove",
    r"""
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
""",
)
"""``path recursive``. ``ok``."""

MKDIR = _program(
    "mkdir",
    r"""
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
""",
)
"""``path mode parents``. ``ok``."""

MOVE = _program(
    "move",
    r"""
resolve "$1"; present; from=$p
case $from in ./*) from=$dir/$from;; esac
resolve "$2"; trim; parent
[ ! -d "$p" ] || no file_exists
if [ -e "$p" ] || [ -L "$p" ]; then [ "$3" ] || no file_exists; fi
replace "$from" "$p" || because "$why"
say ok
""",
)
"""``from to overwrite``. ``ok``."""

MAKE_TEMPORARY = _program(
    "make_temporary",
    r"""
d=${TMPDIR:-/tmp}/connmgr-$1
why=$(mkdir -m 0700 -- "$d" 2>&1) || because "$why"
say ok "$d"
""",
)
"""``name``. ``ok`` and a new directory, 0700."""
