# Prints a line that the login is over, and becomes the program. On separate streams each gets its own line, because the
# output after it belongs to the program. The lines of this script are joined into one.
[ -t 2 ] || echo "$0." >&2
echo
echo "$0"
exec "$@"
