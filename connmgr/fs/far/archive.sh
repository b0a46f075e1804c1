# What tar complains of follows its archive. To a terminal it writes none itself.
resolve "$1"; shift
[ -e "$p" ] || absent -L
[ "$tar" ] || no tar_missing
if [ -d "$p" ]; then
  cd -P "$p" 2>/dev/null && [ -r . ] || no permission_denied
  [ $# -gt 0 ] || set -- .
else
  [ -r "$p" ] || no permission_denied
  trim; parent
  cd -P "$d" 2>/dev/null || no permission_denied
  set -- "./$b"
fi
COPYFILE_DISABLE=1; export COPYFILE_DISABLE
say ok
pack() { tar -c $tar_create -f - "$@" 2>&4 || echo "tar: exit status $?" >&4; }
send() { if [ -t 3 ]; then pack "$@" | cat >&3; else pack "$@" >&3; fi; }
{ why=$(send "$@" 4>&1 | { head -c 32768; cat >/dev/null; }); } 3>&1
printf '%s' "$why"
