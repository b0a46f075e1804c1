# Prints a line that the login is over, and becomes the program, on a terminal in raw mode: in its usual mode it echoes,
# translates newlines and drops lines of 4,096 bytes and more (termios(3)).
stty raw -echo
echo
echo "$0"
exec "$@"
