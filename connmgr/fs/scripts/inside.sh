# Enters the directory p, or the directory of the file p, whose name is then `only`. For callers with rules, `reach` has
# already done so.
inside() {
  only=
  if [ "$gated" ] && [ "$p" != . ]; then
    only=$p
    [ -L "$p" ] || [ -r "$p" ] || no permission_denied
    return
  fi
  if [ -d "$p" ]; then enter "$p" && [ -r . ] || no permission_denied
  else
    [ -r "$p" ] || no permission_denied
    trim; parent
    enter "$d" || no permission_denied
    only=./$b
  fi
}
