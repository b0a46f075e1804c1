reach "$1" tree read
[ -e "$p" ] || absent -L
[ -d "$p" ] || no wrong_file_type
enter "$p" && [ -r . ] || no permission_denied
[ -z "$2" ] || find . -prune >/dev/null 2>&1 || no file_operation_failed "find is not installed there."
[ ! "$gated" ] || [ ! "$2" ] || finds_safely
if [ "$2" ]; then prune=; else prune=-prune; fi
describe() {
  if [ "$how" = find ]; then find . ! -name . $prune -printf "$format"
  elif find . -prune >/dev/null; then find . ! -name . $prune -exec stat "$how" "$format" -- {} +
  else
    for n in ./* ./.[!.]* ./..?*; do
      if [ -e "$n" ] || [ -L "$n" ]; then stat "$how" "$format" -- "$n"; fi
    done
  fi
}
finish() { printf '%s end' "$mark"; }
