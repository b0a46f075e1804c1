# What is at a path, for undo: its kind and facts; then its real path and a NUL; then the content of a file of at most
# $2 bytes. With $3 a link at the end counts itself. Content and facts are those of one open file, which has that name: a
# link that another user puts in its place meanwhile is not followed, or its copy would have, and an undo would write
# there, what that user may not read.
limit=$2
reach "$1" "${3:-file}" write
[ "$gated" ] || {
  [ "$3" ] || [ ! -L "$p" ] || { p=$(readlink -f -- "$p" && echo x) || no no_such_directory; p=${p%??}; }
  trim; parent
  enter "$d" || no permission_denied
  at=$(physical && echo x) || no file_operation_failed
  at=${at%??}
  case $b in ""|.|..) p=.;; *) at=${at%/}/$b p=./$b;; esac
}
case $(command -v sha256sum || command -v openssl || command -v shasum || command -v sha256) in "") sums=-;; *) sums=sums;; esac
facts() { stat -c '%s %a %u %g %Y' -- "$p" || stat -f '%z %Mp%Lp %u %g %m' -- "$p" || echo "- - - - -"; } 2>/dev/null
facts_of_open() { stat -L -c '%s %a %u %g %Y' /proc/self/fd/0 || stat -f '%z %Mp%Lp %u %g %m' || facts; } 2>/dev/null
[ "$gated" ] || opened() {
  [ -f "$p" ] && [ ! -L "$p" ] || return
  found=$(identity) || return 0
  [ "$found" = "$(named "$p")" ]
}
told() { say ok "$1" "$2" $sums; printf '%s\000' "$at"; }
deliver() {
  opened || { replaced=1; return; }
  f=$(facts_of_open)
  case ${f%% *} in -) kind=other;; *) [ "${f%% *}" -le "$limit" ] || kind=large;; esac
  told $kind "$f"
  [ $kind != file ] || cat
  exit
}
if [ -L "$p" ]; then kind=link
elif [ -f "$p" ]; then kind=file
elif [ -d "$p" ]; then kind=directory
elif [ -e "$p" ]; then kind=other
else kind=absent; fi
if [ $kind = file ]; then
  for turn in 1 2 3 4 5; do
    replaced=
    deliver <"$p" 2>/dev/null
    [ "$replaced" ] || break
  done
  [ ! "$replaced" ] || swapped
  kind=unreadable
fi
if [ $kind = absent ]; then told absent "- - - - -"; else told $kind "$(facts)"; fi
