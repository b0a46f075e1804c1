# Each record ends with NUL. The sum of a large file follows the file's size, because it may take long.
resolve "$1"; shift
[ -e "$p" ] || absent -L
find . -prune >/dev/null 2>&1 || no file_operation_failed "find is not installed there."
[ "$sum" ] || no file_operation_failed "None of sha256sum, openssl, shasum and sha256 is installed there."
inside
follow=
if [ "$only" ]; then set -- "$only"; follow=-H; elif [ $# = 0 ]; then set -- .; fi
# These two are scripts for the shells that find starts.
# shellcheck disable=SC2016
announce='{ stat -L -c %s -- "$n" || stat -L -f %z -- "$n" || wc -c <"$n"; } && printf "\0";'
# shellcheck disable=SC2016
one='s=$($0 <"$n") && case $s in *"= "*) s=${s##* };; *) s=${s%% *};; esac && printf "%s  %s\0" "$s" "$n";'
sums() {
  if [ "$many" ]; then find $follow "$@" -type f -size -2049 -exec sha256sum -z -- {} +
  else find $follow "$@" -type f -size -2049 -exec /bin/sh -c "for n do $one done" "$sum" {} +; fi
  find $follow "$@" -type f -size +2048 -exec /bin/sh -c "for n do $announce $one done" "$fast" {} +
}
say ok
if [ -t 1 ]; then sums "$@" | cat; else sums "$@"; fi 2>/dev/null
printf '%s end' "$mark"
