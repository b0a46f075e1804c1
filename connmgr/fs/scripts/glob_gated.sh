# Enters the directory before the first wildcard, also through links; the wildcards themselves pass through none. Each
# match is described in its directory, which is entered too, after `=` and the directory's name.
hold "$1" tree at
ask at "$h"
root=${h%/} start=$p pattern=./$2
IFS=
set +f
described() {
  [ $# -gt 0 ] || return
  (
    if [ "$d" != . ]; then
      cd -P "$d" 2>/dev/null && located || exit
      [ "$h" = "$root/${d#./}" ] || exit
    fi
    printf '%s =%s' "$mark" "$d"
    if [ "$how" = find ]; then find "$@" -prune -printf "$format"
    else stat "$how" "$format" -- "$@"; fi
  )
}
describe() {
  [ "$start" = . ] && [ ! "$missing" ] || return
  d=.
  set --
  for n in $pattern; do
    if [ ! -e "$n" ] && [ ! -L "$n" ]; then continue; fi
    if [ "${n%/*}" != "$d" ] || [ $# -ge 100 ]; then described "$@"; set --; fi
    d=${n%/*}
    set -- "$@" "./${n##*/}"
  done
  described "$@"
}
finish() { printf '%s end' "$mark"; }
