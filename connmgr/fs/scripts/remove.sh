reach "$1" name write${2:+-all}
[ ! "$gated" ] || whole "$2" || set -- "$1" "" "$3"
present
[ ! -d "$p" ] || trim
if [ -d "$p" ] && [ ! -L "$p" ]; then
  if [ "$p" -ef / ]; then no permission_denied; fi 2>/dev/null
  case $(cd -P "$p" 2>/dev/null && pwd -P) in /|//) no permission_denied;; esac
  if [ "$2" ]; then why=$(rm -rf -- "$p" 2>&1); else why=$(rmdir -- "$p" 2>&1); fi || because "$why"
else
  if [ "$3" ]; then
    if [ ! -f "$p" ] || [ -L "$p" ]; then no file_changed; fi
    size= still "$p" "$3"
  fi
  why=$(rm -f -- "$p" 2>&1) || because "$why"
fi
say ok
