# A name that begins with a dash becomes ./-name; `~` is the user's home; relative paths begin at the session's
# directory. The shell stays in no other directory, because its user might not be able to enter the session's again. A
# file that replaces another is never moved into a directory that another user has put there meanwhile: mv of GNU and
# busybox has -T for this, that of BSD -h. For callers with rules over paths, gate.sh redefines `reach`, `enter` and
# `opened`; where something is put back, pin.sh the first two.
#
# `physical` prints the shell's directory as the kernel knows it. A shell's own pwd may be wrong: some shells compute it
# before they enter a directory, and another user may have put a link there meanwhile.
unset CDPATH
gated= pinned=
reach() { resolve "$1"; }
enter() { cd -P "$1" 2>/dev/null || return; }
opened() { :; }
resolve() {
  cd /
  case $1 in
    "~"|"~/"*) [ "$HOME" ] || no no_such_directory; p=$HOME${1#"~"};;
    /*) p=$1;;
    *) cd -P "$dir" 2>/dev/null || no no_such_directory; p=./$1;;
  esac
}
physical() { if [ -x /bin/pwd ]; then /bin/pwd -P; else readlink /proc/self/cwd; fi; }
swapped() { no file_operation_failed "Somebody else replaced the file or its directory meanwhile."; }
trim() { p=${p%"${p##*[!/]}"}; p=${p:-/}; }
parent() {
  d=${p%/*}; d=${d:-/}; b=${p##*/}
  [ -d "$d" ] && return
  why=$(ls -dL -- "$d/." 2>&1 >/dev/null)
  case ${why##*: } in *"ermission denied"*) no permission_denied;; esac
  no no_such_directory
}
# Enters the directory above p, and looks where that is.
hold_above() {
  cd -P "$d" 2>/dev/null || no permission_denied
  h=$(physical && echo x) || no file_operation_failed
  h=${h%??} d=. p=./$b
}
# Enters the directory p, unless somebody else has put a link there.
step_in() {
  cd -P "$p" 2>/dev/null || no permission_denied
  there=$(physical && echo x)
  [ "${there%??}" = "${h%/}/$b" ] || swapped
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
# The second is GNU's, for systems without /proc.
identity() { stat -L -c %d:%i /proc/self/fd/0 || stat -L -c %d:%i - || stat -f %d:%i; } 2>/dev/null
named() { stat -c %d:%i -- "$1" || stat -f %d:%i -- "$1"; } 2>/dev/null
