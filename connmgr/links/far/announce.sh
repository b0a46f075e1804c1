# Says on a line of its own that the login is over, and becomes the program. Where the streams are apart, each says for
# itself where the login ends: what is behind belongs to the program. Its lines are joined to one.
[ -t 2 ] || echo "$0." >&2
echo
echo "$0"
exec "$@"
