# The shell expands the pattern as the value of a variable, so no part of it is a command, a variable or a blank between
# two words.
resolve "$1"
IFS=
set +f
described() {
  [ $# -gt 0 ] || return
  if [ "$how" = find ]; then find "$@" -prune -printf "$format"
  else stat "$how" "$format" -- "$@"; fi
}
describe() {
  for n in $p; do
    if [ -e "$n" ] || [ -L "$n" ]; then set -- "$@" "$n"; fi
    [ $# -lt 100 ] || { described "$@"; set --; }
  done
  described "$@"
}
finish() { printf '%s end' "$mark"; }
