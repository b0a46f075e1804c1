# $1 is the block size of dd; `say` acknowledges a chunk on descriptor 5.
block=$1
say() { echo "$@"; }
umask 077
d=$(mktemp -d "${TMPDIR:-/tmp}/connmgr-XXXXXXXXXX") || exit 1
trap 'rm -rf "$d"' EXIT
trap 'exit 1' HUP INT TERM PIPE
mkfifo "$d/stdin" || exit 1
# A terminal cannot end the input, so there it comes in chunks.
if [ -t 0 ]; then echo "ok ${exact:-acknowledged} $d/stdin"; else echo "ok plain $d/stdin"; fi
# Without a line that says that the command begins, nobody will open the other end.
read -r begins || exit
# If somebody has removed it, this would make a file, and the command could take its beginning for the whole.
[ -p "$d/stdin" ] || exit
# The command has opened its end when this returns. Then nothing is left, even if this shell is killed.
exec 3>"$d/stdin"
rm -rf "$d"
if [ -t 0 ]; then chunks 5>&1 >&3; else cat >&3; fi 2>/dev/null
