# A new directory gets its mode, and where it is put back its owner, from inside: by its name, another user could have
# put a link there meanwhile.
reach "$1"
trim
if [ "$3" ]; then
  if [ -d "$p" ]; then say ok; exit 0; fi
else
  parent
  if [ -e "$p" ] || [ -L "$p" ]; then no file_exists; fi
fi
b=${p##*/}
# Without a mode or an owner there is nothing to set from inside; `.` and `..` name no new directory.
case $2$4:$b in
  :*|*:|*:.|*:..) why=$(mkdir ${3:+-p} ${2:+-m "$2"} -- "$p" 2>&1) || because "$why"; say ok; exit 0;;
esac
d=${p%/*}; d=${d:-/}
if [ ! -d "$d" ]; then why=$(mkdir -p -- "$d" 2>&1) || because "$why"; fi
hold_above
umask 077
why=$(mkdir -- "$p" 2>&1) || because "$why"
step_in
# Somebody else may have put a directory in its place; an empty one gives nothing away.
[ ! "$(ls -A)" ] || swapped
# Only root gives a directory to others.
[ ! "$4" ] || chown -- "$4" . 2>/dev/null
if [ "$2" ]; then why=$(chmod -- "$2" . 2>&1) || because "$why"; fi
say ok
