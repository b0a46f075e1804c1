# For callers with rules over paths. `reach` enters the directories of a path one by one, and asks the daemon about the
# real path before anything is opened, created or removed. Afterwards p is ./name in the current directory, where no
# further link is followed, or . for the directory itself.
#
# A link at the end of a path is followed for a `file` and for a `tree`, which is entered if it is a directory. It is
# not followed for a path that is described (`look`), for a `member` of a directory, which is entered too, and for the
# `name` of an existing file or one to be created (`new`), where a trailing slash is ignored.
#
# shellcheck disable=SC2329 # the programs call what the guard defines
guard() {
  gated=1 only_rename=
  reach() { hold "$1" "$2" "$3"; permit "$3"; }
  enter() { [ "$1" = . ]; }
  opened() {
    found=$(stat -L -c "%d:%i %s" /proc/self/fd/0 2>/dev/null) || found=$(stat -f "%d:%i %z" 2>/dev/null) || unsafe stat
    size=${found#* }
    name=$(stat -c %d:%i -- "$p" 2>/dev/null) || name=$(stat -f %d:%i -- "$p" 2>/dev/null)
    [ "${found% *}" = "$name" ]
  }
  replace() {
    for o in ${only_rename:+"-fT --no-copy"} -fT -fh; do
      why=$(mv $o -- "$1" "$2" 2>&1) && return
      case $why in "mv: "*"nvalid option"*|"mv: illegal option"*|"mv: "*"nknown option"*|*"nrecognized option"*) ;; *) return 1;; esac
    done
    unsafe mv
  }
}
unsafe() { no file_operation_failed "The token has path rules, and the remote host's $1 cannot enforce them."; }
ask() {
  printf '%s ask %s %s %s\n' "$mark" "$1" "$2" "$mark" || exit
  read -r verdict <&6 || exit 1
  [ "$verdict" = yes ] || { tidy; exit 0; }
}
here() { located || unsafe pwd; }
located() { h=$(physical 2>/dev/null && echo x) && h=${h%??}; }
# Linux follows at most 40 links too (path_resolution(7)), so a circle ends.
expanded() {
  links=$((links + 1)) named=
  [ $links -le 40 ] && l=$(readlink "./$b" 2>/dev/null && echo x) || return
  rest=${l%??}$more
  case $rest in /*) cd /;; esac
}
# Going back out of a directory reveals that it exists, so the rules decide about this too. /proc/self differs for each
# program that reads it.
hold() {
  resolve "$1"
  links=0 named= missing= way=$2 kind=$3
  case $way in name|new) trim;; esac
  rest=$p
  while :; do
    rest=${rest#"${rest%%[!/]*}"}
    b=${rest%%/*}
    more=${rest#"$b"}
    case $b in
      "") b=.; break;;
      .) rest=$more; continue;;
      ..)
        if [ "$named" ]; then
          [ "$kind" != at ] || { missing=1; break; }
          here; ask "${kind%-all}" "$h"
        fi
        named= rest=$more
        cd -P .. || { missing=1; break; }
        continue;;
    esac
    case $more$way in
      name|new|look) break;;
      member) [ ! -L "./$b" ] || break;;
    esac
    case $PWD/$b in /proc/self|/proc/thread-self) direct=1;; *) direct=;; esac
    if [ -L "./$b" ] && [ ! "$direct" ]; then
      expanded || { missing=1; break; }
    elif [ "$more" ]; then
      cd -P "./$b" 2>/dev/null || { missing=1; break; }
      named=1 rest=$more
    else
      case $way in tree|member) ! cd -P "./$b" 2>/dev/null || b=.;; esac
      break
    fi
  done
  here
  d=. p=./$b at=${h%/}/$b$more
  [ "$b" != . ] || p=. at=$h
}
names_directory() { [ ! "$missing" ] && [ -d "$p" ] && [ ! -L "$p" ]; }
permit() {
  kind=$1
  case $kind in *-all) names_directory || kind=${kind%-all};; esac
  ask "$kind" "$at"
  [ ! "$missing" ] || lost
}
lost() {
  why=$(ls -d "./$b/." 2>&1 >/dev/null)
  case $way:$kind:${why##*: } in
    name:*|*:read:*|*"ermission denied"*) because "$why";;
  esac
  no no_such_directory
}
# Whether the caller wants to remove a directory with its content, and may.
whole() {
  [ "$1" ] && case $kind in *-all) ;; *) return 1;; esac
  removes_safely
}
# These programs never follow a link that another user puts in a directory's place while they work in the tree.
removes_safely() { case $(rm --version 2>&1)/$(uname) in *GNU*|*BSD|*/Darwin|*/DragonFly) ;; *) unsafe rm;; esac; }
finds_safely() { case $(find . --version 2>&1) in *GNU*) ;; *) unsafe find;; esac; }
go_in() {
  cd -P "./$b" 2>/dev/null || no permission_denied
  above=$h
  here
  [ "$h" = "${above%/}/$b" ] || swapped
}
