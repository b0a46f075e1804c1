resolve "$1"; present; from=$p
case $from in ./*) from=$dir/$from;; esac
resolve "$2"; trim; parent
[ ! -d "$p" ] || no file_exists
if [ -e "$p" ] || [ -L "$p" ]; then [ "$3" ] || no file_exists; fi
replace "$from" "$p" || because "$why"
say ok
