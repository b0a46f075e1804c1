# Sets the variables that the next line of standard input sets, whose words stand for newlines by $_cm_newline: the words of
# a process can be read by every user of its machine (ps(1)), and its input by none. A terminal is raw meanwhile: in its
# usual mode it echoes, acts on control characters and drops lines of 4,096 bytes and more (termios(3)). Then the mark $1 is
# printed with a colon when the line may come, and with a dot when the terminal is as it was.
_cm_newline='
'
_cm_terminal=
if [ -t 0 ]; then
    _cm_terminal=$(stty -g) && stty raw -echo || exit
    printf '%s:' "$1"
fi
IFS= read -r _cm_given || exit
eval "$_cm_given"
if [ -n "$_cm_terminal" ]; then
    stty "$_cm_terminal"
    printf '%s.' "$1"
fi
unset _cm_given _cm_newline _cm_terminal
