# Each directory is made in one that was entered, and entered itself; so what is asked about is what is made.
hold "$1" new write
ask write "$at"
if [ ! "$missing" ]; then
  if [ "$3" ] && names_directory; then say ok; exit 0; fi
  if [ "$p" = . ] || [ -e "$p" ] || [ -L "$p" ]; then no file_exists; fi
else
  if [ ! "$3" ] || [ -e "./$b" ] || [ -L "./$b" ]; then lost; fi
fi
make() { why=$(mkdir -- "./$b" 2>&1) || because "$why"; }
rest=$b$more
while :; do
  rest=${rest#"${rest%%[!/]*}"}
  b=${rest%%/*}
  rest=${rest#"$b"}
  case $b in
    "") say ok; exit 0;;
    .) continue;;
    ..) no no_such_directory;;
  esac
  [ "${rest#"${rest%%[!/]*}"}" ] || break
  ask write "${h%/}/$b"
  make; go_in
done
if [ ! "$2" ]; then make
else
  # Without a moment in which it has another mode, or is somebody else's by then.
  umask 077; make; go_in
  why=$(chmod "$2" . 2>&1) || because "$why"
fi
say ok
