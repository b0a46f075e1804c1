d=${TMPDIR:-/tmp}/connmgr-$1
umask 077
why=$(mkdir -- "$d" 2>&1) || because "$why"
say ok "$d"
