# Says on a line of its own that the login is over, and becomes the program, on a terminal that is a plain stream of
# bytes: in its usual mode it echoes, translates newlines and drops lines of 4,096 bytes and more (termios(3)).
stty raw -echo
echo
echo "$0"
exec "$@"
