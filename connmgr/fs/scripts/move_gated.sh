# Both directories are held, one as the working directory, the other by its descriptor. Only a rename is done, because
# the source of a copy could be replaced meanwhile.
reach "$1" name take-all
[ "$p" != . ] || no wrong_file_type
present
from_at=$h from=$b whole= only_rename=1
case $kind in *-all) whole=1;; esac
# Two mounts of one file system have the same device number, and rename(2) fails between them all the same (EXDEV).
mount_of() { while read -r name value; do [ "$name" != mnt_id: ] || echo "$value"; done <"/proc/self/fdinfo/$1"; }
one_file_system() {
  # shellcheck disable=SC2046
  set -- $(stat -c %d -- "$from" . || stat -f %d -- "$from" .)
  [ "$1" ] && [ "$1" = "$2" ] && [ "$(mount_of 7)" = "$(mount_of 8)" ]
} 2>/dev/null
finish() {
  if [ "$h" = "$from_at" ]; then from=./$from
  else
    [ -d /proc/self/fd/7 ] || unsafe /proc
    from=/proc/self/fd/7/$from
    one_file_system || no file_operation_failed "A token with path rules cannot move files between two file systems."
  fi
  [ "$whole" ] || [ ! -d "$from" ] || [ -L "$from" ] || swapped
  replace "$from" "$p" || because "$why"
  say ok; exit 0
}
arrive() {
  kind=write
  [ ! "$whole" ] || kind=fill
  reach "$2" new $kind
  if [ -d "$p" ] && [ ! -L "$p" ]; then no file_exists; fi
  if [ -e "$p" ] || [ -L "$p" ]; then [ "$3" ] || no file_exists; fi
  finish 8<.
}
arrive "$@" 7<.
no permission_denied
