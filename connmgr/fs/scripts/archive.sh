# The archive comes first, then tar's error messages. tar itself refuses to write an archive to a terminal.
way=tree
[ ! "$gated" ] || [ ! "$2" ] || { way=member; set -- "$1"; }
reach "$1" $way read-all; shift
if [ $way = member ]; then present; else [ -e "$p" ] || absent -L; fi
[ "$tar" ] || no tar_missing
case $gated$tar_create in 1--format=gnu*) ;; 1*) unsafe tar;; esac
inside
if [ "$only" ]; then set -- "$only"; elif [ $# = 0 ]; then set -- .; fi
case $gated$only in 1?*) shallow=--no-recursion;; *) shallow=;; esac
COPYFILE_DISABLE=1; export COPYFILE_DISABLE
say ok
pack() { tar -c $tar_create $shallow -f - "$@" 2>&4 || echo "tar: exit status $?" >&4; }
send() { if [ -t 3 ]; then pack "$@" | cat >&3; else pack "$@" >&3; fi; }
{ why=$(send "$@" 4>&1 | { head -c 32768; cat >/dev/null; }); } 3>&1
printf '%s' "$why"
