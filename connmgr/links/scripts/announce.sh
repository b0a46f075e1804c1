# Prints a line with the mark $1 that the login is over; the program comes next. On separate streams each gets its own
# line, because the output after it belongs to the program. The lines of this script are joined into one.
[ -t 2 ] || echo "$1." >&2
echo
echo "$1"
shift
