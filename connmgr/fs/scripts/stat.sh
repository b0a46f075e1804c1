if [ "$2" ]; then reach "$1" file read; else reach "$1" look read; fi
[ ! "$gated" ] || set -- "$1" ""
present
[ -z "$2" ] || [ -e "$p" ] || absent -L
link=
[ ! -L "$p" ] || link=$(readlink -- "$p" && echo x)
follow=${2:+-L}
describe() {
  if [ "$how" = find ]; then find $follow "$p" -prune -printf "$format"
  else stat $follow "$how" "$format" -- "$p"; fi
}
finish() { printf '%s target %s' "$mark" "$link"; }
