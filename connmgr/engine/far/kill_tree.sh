root=$1 carried=CONNMGR_COMMAND=$2 word=$3 spared=
# In a process of its own: if this shell is killed because a busy machine is too slow, the stopped processes are still
# killed.
(
  # A process that has reused the number does not have the word in its environment.
  [ ! -r "/proc/$root/environ" ] || grep -qszF "CONNMGR_BOOT=$word" "/proc/$root/environ" || exit 1
  kill_all
  p=$root
  resume
  [ -z "$found" ]
) &
wait $!
