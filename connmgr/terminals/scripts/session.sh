# Becomes the program of terminal $2 like login.sh, in the state of a session: the lines that come on the terminal, up
# to a line $1, set its directory and variables. They contain secrets, and so are in no argv and no file. It prints $1
# when it is ready for them, and $1. when the terminal is restored: input typed before that would be misread. Every
# shell of the Bourne family can read this.
_cm_modes=$(stty -g) && stty raw -echo || exit 1
printf '\n%s\n' "$1"
_cm_term=$TERM _cm_text=
while IFS= read -r _cm_line && [ "$_cm_line" != "$1" ]; do
    _cm_text="$_cm_text$_cm_line
"
done
stty "$_cm_modes"
printf '%s.\n' "$1"
eval "$_cm_text"
TERM=$_cm_term CONNMGR_TERMINAL=$2
export TERM CONNMGR_TERMINAL
unset COLUMNS LINES
_cm_kind=$3 _cm_command=$4
shift 4
case $_cm_kind in argv) become "$@";; command) exec "$@" -c "$_cm_command";; esac
exec "$@" -i
