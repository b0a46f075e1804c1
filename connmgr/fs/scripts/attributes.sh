# The owner is changed first, because the kernel then clears setuid and setgid (chown(2)). Five digits of a mode make
# GNU's chmod clear them on a directory too, where four would keep them.
#
# Where attributes are put back, they are those of the very file that was looked at: $5 has its mode, user and group, $6
# its SHA-256, if they are known. It is reached by its descriptor, since somebody else could put a link in its place.
mode=$2 owner=$3 group=$4 facts=$5 sum=$6 to=
reach "$1"
present
change() {
  if [ "$owner$group" ]; then
    why=$(chown -- "$owner${group:+:$group}" "$to" 2>&1) || case $why in
      *"nvalid user"*|*"nvalid group"*|*"nvalid spec"*|*"nknown user"*|*"nknown group"*|*"llegal user"*|*"llegal group"*)
        no file_operation_failed "The machine has no such user or group: ${why##*: }";;
      *) because "$why"
    esac
  fi
  if [ "$mode" ]; then why=$(chmod -- "$mode" "$to" 2>&1) || because "$why"; fi
  say ok; exit 0
}
without_zeros() { while case $1 in 0[0-7]*) ;; *) ! :;; esac; do set -- "${1#0}"; done; echo "$1"; }
change_what_was_seen() {
  found=$( { stat -L -c '%a %u %g' -- "$to" || stat -f '%Mp%Lp %u %g' -- "$to"; } 2>/dev/null)
  [ ! "$facts" ] || [ "$(without_zeros "$found")" = "$facts" ] || no file_changed
  size=
  [ ! "$sum" ] || still "$to" "$sum"
  change
}
by_descriptor() {
  to=/proc/self/fd/4
  [ -e "$to" ] || to=$p
  change_what_was_seen
}
# Whether nobody else can exchange a file of the current directory.
is_ours_alone() {
  # shellcheck disable=SC2046
  set -- $(ls -ldn . 2>/dev/null)
  case $1 in d????-??-?*|d????????[tT]*) [ "$3" = 0 ] || [ -O . ];; *) false;; esac
}
if [ ! "$pinned" ]; then to=$p; change; fi
[ ! -L "$p" ] || no file_changed
if [ -d "$p" ]; then step_in; to=.; change_what_was_seen; fi
[ -f "$p" ] || no file_changed
by_descriptor 4<"$p" 2>/dev/null
# A file that its user may not read.
is_ours_alone || no permission_denied
to=$p
change_what_was_seen
