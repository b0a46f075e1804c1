d=${TMPDIR:-/tmp}/connmgr-$1
why=$(mkdir -m 0700 -- "$d" 2>&1) || because "$why"
say ok "$d"
