root=$1 carried=CONNMGR_COMMAND=$2 word=$3 spared=
# Finds the tree at a tenth of the price of descendants, but not in every kernel, and perhaps not all of it.
first_look() {
  found= level=$root
  while [ "$level" ]; do
    below=
    for p in $level; do
      for children in "/proc/$p/task/"*/children; do
        line=
        read -r line <"$children"
        below="$below$line "
      done
    done
    level=${below# } found="$found$level"
  done
}
# In a process of its own: if this shell is killed because a busy machine is too slow, the stopped processes are still
# killed.
(
  # A process that has reused the number does not have the word in its environment.
  [ ! -r "/proc/$root/environ" ] || grep -qszF "CONNMGR_BOOT=$word" "/proc/$root/environ" || exit 1
  first_look 2>/dev/null
  [ "$found" ] || descendants
  kill_all
  p=$root
  resume
  [ -z "$found" ]
) &
wait $!
