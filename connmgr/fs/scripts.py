"""The sh scripts that work on files on the far side.

Each runs on a channel of its own, started as every process of the connection is, and so as the session's user.
Arguments arrive as positional parameters and are never parsed again; the first is always the session's directory. The
first line on stdout is ``ok`` and facts, or ``no`` and the code of an error; what follows is data.
"""

from __future__ import annotations

# A name that begins with a dash becomes ./-name; `~` is the user's home; what is relative begins at the session's
# directory.
_PRELUDE = r"""
LC_ALL=C; export LC_ALL; unset CDPATH
no() { echo "no $1"; exit 0; }
because() {
  case $1 in
    *"o space"*|*"uota exceeded"*) no no_space;;
    *"ermission denied"*|*"not permitted"*|*"ead-only"*) no permission_denied;;
    *"o such file"*) no no_such_file;;
    *"ot empty"*) no directory_not_empty;;
    *"xists"*) no file_exists;;
    *"ot a directory"*|*"s a directory"*) no wrong_file_type;;
    *) no file_operation_failed;;
  esac
}
resolve() {
  case $1 in "~") p=$HOME;; "~/"*) p=$HOME/${1#"~/"};; *) p=$1;; esac
  case $p in /*) ;; *) cd "$dir" 2>/dev/null || no no_such_directory; p=./$p;; esac
}
parent() { d=${p%/*}; [ "$d" ] || d=/; b=${p##*/}; [ -d "$d" ] || no no_such_directory; }
present() { [ -e "$p" ] || [ -L "$p" ] || no no_such_file; }
checksum() { openssl dgst -sha256 "$1" || sha256sum -- "$1" || shasum -a 256 -- "$1"; } 2>/dev/null
flush() { sync -- "$1" || fsync "$1" || sync; } 2>/dev/null
dir=$1; shift
"""

READ = (
    _PRELUDE
    + r"""
resolve "$1"
[ -e "$p" ] || no no_such_file
[ -f "$p" ] || no wrong_file_type
[ -r "$p" ] || no permission_denied
n=$(stat -L -c %s -- "$p" 2>/dev/null || stat -L -f %z -- "$p" 2>/dev/null || wc -c <"$p") || no file_operation_failed
echo "ok $n"
exec cat -- "$p" 2>/dev/null
"""
)
"""``path``. ``ok size``, then the content."""

# The file is received beside its target and renamed over it once it is whole. What a killed writer left is named after
# its process, and cleared by the next one. Where the owner cannot be kept that way, the content is copied over.
WRITE = (
    _PRELUDE
    + r"""
size=$2 sum=$3 mode=$4
resolve "$1"
if [ -L "$p" ]; then p=$(readlink -f -- "$p" && echo x) || no no_such_directory; p=${p%??}; fi
parent
[ "$b" ] || no wrong_file_type
owner=
if [ -e "$p" ]; then
  [ -f "$p" ] || no wrong_file_type
  owner=$(stat -c '%a %u:%g' -- "$p" 2>/dev/null || stat -f '%Lp %u:%g' -- "$p") 2>/dev/null
  mode=${owner%% *} owner=${owner#* }
fi
for t in "$d"/.connmgr-[0-9]*; do
  [ -f "$t" ] && ! kill -0 "${t##*-}" && ! [ -d "/proc/${t##*-}" ] && rm -f -- "$t"
done 2>/dev/null
[ "$mode" ] || mode=$(printf %o "$((0666 & ~0$(umask)))")
t=$d/.connmgr-$$
trap 'rm -f -- "$t"' EXIT
trap 'exit 1' HUP INT TERM PIPE
umask 077
why=$( (set -C; : >"$t") 2>&1) || because "$why"
receive=cat
[ -t 0 ] && receive="head -c $size"
echo ok
why=$($receive 2>&1 >"$t") || because "$why"
[ "$(wc -c <"$t")" -eq "$size" ] || no transfer_failed
case $(checksum "$t") in ""|*"$sum"*) ;; *) no transfer_failed;; esac
if [ "$owner" ] && ! chown "$owner" "$t" 2>/dev/null; then
  why=$(cat 2>&1 <"$t" >"$p") || because "$why"
else
  why=$(chmod "$mode" "$t" 2>&1 && flush "$t" && mv -f -- "$t" "$p" 2>&1) || because "$why"
  t=$p; trap - EXIT
fi
flush "$p"; flush "$d"
echo ok
"""
)
"""``path size sha256 mode``. ``ok`` when it is ready for the content, and ``ok`` when that is in its place."""


LIST = (
    _PRELUDE
    + r"""
mark=$2
resolve "$1"
[ -e "$p" ] || no no_such_file
[ -d "$p" ] || no wrong_file_type
cd "$p" 2>/dev/null && [ -r . ] || no permission_denied
if stat -c %n . >/dev/null 2>&1; then set -- -c "$mark %f %s %Y %u %g %U %G /%n"
else set -- -f "$mark %Xp %z %m %u %g %Su %Sg /%N"; fi
echo ok
find . ! -name . -prune -exec stat "$@" -- {} + 2>/dev/null
"""
)
"""``path mark``. ``ok``, then for each entry the mark, hexadecimal mode, size, time, ids, names and ``/./name``."""

STAT = (
    _PRELUDE
    + r"""
mark=$2 follow=$3
resolve "$1"
present
[ -z "$follow" ] || [ -e "$p" ] || no no_such_file
link=
[ -L "$p" ] && link=$(readlink -- "$p" && echo x)
if stat -c %n . >/dev/null 2>&1; then set -- -c "$mark %f %s %Y %u %g %U %G /%n"
else set -- -f "$mark %Xp %z %m %u %g %Su %Sg /%N"; fi
echo ok
stat ${follow:+-L} "$@" -- "$p" 2>/dev/null
printf '%s target %s' "$mark" "$link"
"""
)
"""``path mark follow``. ``ok``, an entry as of LIST, and after the mark ``target`` with the link's own target."""

REMOVE = (
    _PRELUDE
    + r"""
resolve "$1"
present
if [ -d "$p" ] && ! [ -L "$p" ]; then
  case $(cd "$p" 2>/dev/null && pwd -P) in /) no permission_denied;; esac
  if [ "$2" ]; then why=$(rm -rf -- "$p" 2>&1); else why=$(rmdir -- "$p" 2>&1); fi || because "$why"
else
  why=$(rm -f -- "$p" 2>&1) || because "$why"
fi
echo ok
"""
)
"""``path recursive``. ``ok``."""

MKDIR = (
    _PRELUDE
    + r"""
resolve "$1"
if [ "$3" ]; then
  if [ -d "$p" ]; then echo ok; exit 0; fi
  why=$(mkdir -p -- "$p" 2>&1) || because "$why"
else
  p=${p%"${p##*[!/]}"}; parent
  { [ -e "$p" ] || [ -L "$p" ]; } && no file_exists
  why=$(mkdir -- "$p" 2>&1) || because "$why"
fi
[ -z "$2" ] || why=$(chmod "$2" "$p" 2>&1) || because "$why"
echo ok
"""
)
"""``path mode parents``. ``ok``."""

MOVE = (
    _PRELUDE
    + r"""
resolve "$1"; present; from=$p
case $from in /*) ;; *) from=$(pwd)/$from;; esac
resolve "$2"; p=${p%"${p##*[!/]}"}; parent
if [ -d "$p" ] && ! [ -L "$p" ]; then no file_exists; fi
if [ -e "$p" ] || [ -L "$p" ]; then [ "$3" ] || no file_exists; fi
why=$(mv -f -- "$from" "$p" 2>&1) || because "$why"
echo ok
"""
)
"""``from to overwrite``. ``ok``."""

MAKE_TEMPORARY = (
    _PRELUDE
    + r"""
d=$(mktemp -d "${TMPDIR:-/tmp}/connmgr-XXXXXXXXXX" 2>/dev/null) || no permission_denied
echo "ok $d"
"""
)
"""No argument. ``ok`` and a new directory, 0700."""
