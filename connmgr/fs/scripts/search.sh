# A line of the answer is a path from p, NUL, the number of a line, a colon and the line. Empty ones come after some
# files, so that the daemon sees the program work, and the program sees when nobody reads any more.
resolve "$1"
[ -e "$p" ] || absent -L
find . -prune >/dev/null 2>&1 || no file_operation_failed "find is not installed there."
echo x | grep -qF x || no file_operation_failed "grep is not installed there."
inside
text=$2 fold=${3:+-i} names=$4 most=$5
if [ "$only" ]; then names="*"; set -- -H "$only"; else set -- .; fi
# These are scripts for the shells that find starts; $0 is the text. Files of /proc have no size.
# shellcheck disable=SC2016
seen='printf "\n" 2>/dev/null || kill $PPID; }'
# shellcheck disable=SC2016
many='trap "" PIPE; m=$1 f=$2; shift 2; { grep -nIsHF --null $f -m "$m" -e "$0" -- "$@"; '$seen
# shellcheck disable=SC2016
each='trap "" PIPE; m=$1 f=$2; shift 2; for n do {
  if grep -qsF $f -e "$0" -- "$n" && [ "$(tr -dc "\0" <"$n" | head -c 1 | wc -c)" -eq 0 ]; then
    grep -nsF $f -m "$m" -e "$0" -- "$n" | cut -b 1-8192 | while IFS= read -r l; do printf "%s\0%s\n" "$n" "$l"; done
  fi
'$seen'; done'
search() {
  LC_ALL=C find "$@" -type f -name "$names" -size +0 -size -2097152 \
    -exec /bin/sh -c "$one" "$text" "$most" "$fold" {} + 2>/dev/null
}
one=$each
[ ! "$separates" ] || one=$many
say ok
if [ "$separates" ] && [ "$cuts" ]; then search "$@" | LC_ALL=C cut -b 1-16384
elif [ -t 1 ]; then search "$@" | cat
else search "$@"; fi
printf '%s end' "$mark"
