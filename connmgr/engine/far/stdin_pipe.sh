umask 077
d=$(mktemp -d "${TMPDIR:-/tmp}/connmgr-XXXXXXXXXX") || exit 1
trap 'rm -rf "$d"' EXIT
trap 'exit 1' HUP INT TERM PIPE
mkfifo "$d/stdin" || exit 1
echo "ok $d/stdin"
if [ -t 0 ]; then head -c "$1"; else cat; fi >"$d/stdin" 2>/dev/null
