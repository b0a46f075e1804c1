# Each directory is created in one that was entered, and then entered itself, so that the directory asked about is the
# one created.
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
  # The umask prevents a moment with another mode, in which another user could replace it.
  umask 077; make; go_in
  why=$(chmod "$2" . 2>&1) || because "$why"
fi
say ok
