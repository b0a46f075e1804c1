# The size and the content are those of one opened file, whatever takes its name meanwhile.
resolve "$1"
[ -e "$p" ] || absent -L
[ -f "$p" ] || no wrong_file_type
deliver() {
  n=$(stat -L -c %s /proc/self/fd/0 || stat -f %z || stat -L -c %s -- "$p" || wc -c <"$p") || no file_operation_failed
  [ ! -e /proc/self/fd/0 ] || [ -f /proc/self/fd/0 ] || no wrong_file_type
  say ok $n
  cat
  exit
}
deliver <"$p" 2>/dev/null
no permission_denied
