# The owner is changed first, because the kernel then clears setuid and setgid (chown(2)). Five digits of a mode make
# GNU's chmod clear them on a directory too, where four would keep them.
mode=$2 owner=$3 group=$4
resolve "$1"
present
if [ "$owner$group" ]; then
  why=$(chown -- "$owner${group:+:$group}" "$p" 2>&1) || case $why in
    *"nvalid user"*|*"nvalid group"*|*"nvalid spec"*|*"nknown user"*|*"nknown group"*|*"llegal user"*|*"llegal group"*)
      no file_operation_failed "The machine has no such user or group: ${why##*: }";;
    *) because "$why"
  esac
fi
if [ "$mode" ]; then why=$(chmod -- "$mode" "$p" 2>&1) || because "$why"; fi
say ok
