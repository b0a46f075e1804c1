# Size and content are those of one open file, even if another file gets its name meanwhile.
reach "$1" file read
[ -e "$p" ] || absent -L
[ -f "$p" ] || no wrong_file_type
replaced= size=
deliver() {
  opened || { replaced=1; return; }
  n=$size
  [ "$n" ] || n=$(stat -L -c %s /proc/self/fd/0 || stat -f %z || stat -L -c %s -- "$p" || wc -c <"$p") || no file_operation_failed
  [ ! -e /proc/self/fd/0 ] || [ -f /proc/self/fd/0 ] || no wrong_file_type
  say ok $n
  cat
  exit
}
for turn in 1 2 3 4 5; do
  deliver <"$p" 2>/dev/null
  [ "$replaced" ] || break
done
[ ! "$replaced" ] || swapped
no permission_denied
