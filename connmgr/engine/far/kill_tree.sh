root=$1 carried=CONNMGR_COMMAND=$2 word=$3 spared=
# A process of its own: where this shell is killed, too slow on a busy machine, what was stopped is killed nevertheless.
(
  # A process that has got the number since does not carry the word.
  [ ! -r "/proc/$root/environ" ] || grep -qszF "CONNMGR_BOOT=$word" "/proc/$root/environ" || exit 1
  kill_all
  p=$root
  resume
  [ -z "$found" ]
) &
wait $!
