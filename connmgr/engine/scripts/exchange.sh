# The functions by which a program answers after its mark, and reads exactly its input from the channel: $blocks of
# $block bytes, then $rest, $size in all. Errors are recognised by the system's words (in the locale C) at the end of a
# program's message.
# Some programs have set IFS, by whose first character the words would be joined.
# Whoever then reads from the channel, and could not answer, has to end: the daemon waits for the answer.
say() { ifs=$IFS IFS=' '; set -- "$mark $*"; IFS=$ifs; printf '%s\n' "$1"; }
tidy() { :; }
no() { tidy; say no "$@"; exit ${receiving:-0}; }
missing() { no file_operation_failed "The program ${1##*: } is missing there."; }
because() {
  # zsh says behind that what is missing, other shells before it.
  case $1 in
    *": not found"|*": command not found"|*": inaccessible or not found") missing "${1%: *}";;
    *"command not found: "*) missing "$1";;
  esac
  case ${1##*: } in
    *"o space left"*|*"uota exceeded"*) no no_space;;
    *"ermission denied"*|*"not permitted"*|*"ead-only file"*) no permission_denied;;
    *"o such file"*|*"onexistent directory"*|*"irectory nonexistent"*) no no_such_file;;
    *"not empty"*) no directory_not_empty;;
    *"ile exists"*) no file_exists;;
    *"ot a directory"*|*"s a directory"*) no wrong_file_type;;
  esac
  no file_operation_failed "${1##*: }"
}
has_blocks() { [ "$blocks" != 0 ] && dd count=0 iflag=fullblock </dev/null >/dev/null 2>&1; }
content() {
  if has_blocks; then dd bs="$block" count="$blocks" iflag=fullblock; else rest=$size; fi &&
  { [ "$rest" = 0 ] || head -c "$rest"; }
}
