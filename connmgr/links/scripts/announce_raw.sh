# Prints a line with the mark $1 that the login is over, on a terminal in raw mode: in its usual mode it echoes,
# translates newlines and drops lines of 4,096 bytes and more (termios(3)). The program comes next.
stty raw -echo
echo
echo "$1"
shift
