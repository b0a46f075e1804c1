resolve "$1"
trim
if [ "$3" ]; then
  if [ -d "$p" ]; then say ok; exit 0; fi
else
  parent
  if [ -e "$p" ] || [ -L "$p" ]; then no file_exists; fi
fi
why=$(mkdir ${3:+-p} ${2:+-m "$2"} -- "$p" 2>&1) || because "$why"
say ok
