hold "$1" tree at
ask at "$h"
[ "$p" = . ] || no no_such_directory
say ok
