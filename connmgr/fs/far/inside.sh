# Enters the directory p, or that of the file p, whose name is then `only`.
inside() {
  only=
  if [ -d "$p" ]; then cd -P "$p" 2>/dev/null && [ -r . ] || no permission_denied
  else
    [ -r "$p" ] || no permission_denied
    trim; parent
    cd -P "$d" 2>/dev/null || no permission_denied
    only=./$b
  fi
}
