resolve "$1"
[ -e "$p" ] || absent -L
[ -d "$p" ] || no wrong_file_type
cd -P "$p" 2>/dev/null && [ -r . ] || no permission_denied
[ -z "$2" ] || find . -prune >/dev/null 2>&1 || no file_operation_failed "find is not installed there."
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
