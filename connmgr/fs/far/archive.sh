# What tar complains of follows its archive. To a terminal it writes none itself.
resolve "$1"; shift
[ -e "$p" ] || absent -L
[ "$tar" ] || no tar_missing
inside
if [ "$only" ]; then set -- "$only"; elif [ $# = 0 ]; then set -- .; fi
COPYFILE_DISABLE=1; export COPYFILE_DISABLE
say ok
pack() { tar -c $tar_create -f - "$@" 2>&4 || echo "tar: exit status $?" >&4; }
send() { if [ -t 3 ]; then pack "$@" | cat >&3; else pack "$@" >&3; fi; }
{ why=$(send "$@" 4>&1 | { head -c 32768; cat >/dev/null; }); } 3>&1
printf '%s' "$why"
