# A line that is no call, such as the rest of a file that could not be written, ends the helper.
#
# A shell that can open too little takes what it cannot open for what does not exist, or is not permitted. POSIX has 20
# descriptors at least; each redirection keeps what was there before under a number from 10 on.
({ { { :; } </dev/null 2>&1; } </dev/null 2>&1; } </dev/null 2>&1) ||
  { (exec >&2; echo "too few files may be open at a time (ulimit -n)"); exit; }
cd /
run() { f=$1 mark=$2; shift 2; ("$f" "$@") </dev/null; printf '%s over %s\n' "$mark" $? || exit; }
feed() { f=$1 mark=$2; shift 2; ("$f" "$@") || exit; printf '%s over 0\n' "$mark" || exit; }
newline='
'
while IFS= read -r line; do
  case $line in
    "$word as-is "*) text=${line#* as-is };;
    # If printf is a program, the length of its argument is limited.
    "$word "*) text=$(printf %b "${line#* }") || exit;;
    *) exit;;
  esac
  eval "$text"
done
