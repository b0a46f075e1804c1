# Finds the processes below $root, except those in $spared, and the processes that left its tree, which have $carried in
# their environment, unless that is empty, or whose argv matches $spoken, if that is set. It uses only builtins, grep,
# and /proc if present, because minimal containers have no ps. One grep reads all states, because a shell reads a file
# byte by byte. The grep of busybox stops at a NUL, unless -z makes NUL end a line. All processes found are stopped
# before any is killed, so that none can fork and escape.
processes() {
  states=$(grep -Hsoa '.*) [A-Za-z] [0-9]*' /proc/[0-9]*/stat)
  if [ "$states" ]; then
    carriers=$(
      [ -z "$carried" ] || grep -lszF "$carried" /proc/[0-9]*/environ
      [ -z "${spoken-}" ] || grep -lsz "$spoken" /proc/[0-9]*/cmdline
    )
    # The name of a process may be *.
    set -f
    IFS='
'
    for entry in $states; do
      state=${entry##*") "} entry=${entry#/proc/}
      case $state in Z*|X*) ;; *) echo "${entry%%/*}:${state#* }";; esac
    done
    for entry in $carriers; do
      entry=${entry#/proc/}
      echo "${entry%/*}:$root"
    done
  else
    ps -A -o pid= -o ppid= -o state= | while read -r pid parent state; do
      case $state in Z*) ;; *) echo "$pid:$parent";; esac
    done
  fi 2>/dev/null
}
descendants() {
  table=$(processes) found=" $root " grown=1
  [ "$table" ] || exit 1
  while [ "$grown" ]; do
    grown=
    for entry in $table; do
      case $found$spared in *" ${entry%:*} "*) continue;; esac
      case $found in *" ${entry#*:} "*) found="$found${entry%:*} " grown=1;; esac
    done
  done
  found=${found#" $root "}
}
# Whether $found has processes that are not in $sent: $new.
fresh() {
  new=
  for p in $found; do
    case $sent in *" $p "*) ;; *) new="$new$p ";; esac
  done
  [ "$new" ]
}
# Begins with the processes in $found.
kill_all() {
  sent=" " round=0
  while fresh && [ $round -lt 20 ]; do
    kill -STOP $new 2>/dev/null
    sent=$sent$new round=$((round + 1))
    descendants
  done
  round=0
  while [ "$found" ] && [ $round -lt 20 ]; do
    kill -KILL $found 2>/dev/null
    descendants
    round=$((round + 1))
  done
}
