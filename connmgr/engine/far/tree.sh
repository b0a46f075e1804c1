# Finds the processes below $root, but for those in $spared, and those that left its tree, which have $carried in their
# environment. Only builtins, grep, and /proc where there is one: minimal containers have no ps. The grep of busybox reads
# no further than a NUL unless lines end there (-z). Everything found is stopped before anything is killed, so that nothing
# can fork its way out.
processes() {
  if [ -r /proc/self/stat ]; then
    for entry in /proc/[0-9]*; do
      read -r line <"$entry/stat" || continue
      line=${line##*") "} state=${line%% *} line=${line#* }
      case $state in Z|X) ;; *) echo "${entry#/proc/} ${line%% *}";; esac
    done
    for entry in $(grep -lszF "$carried" /proc/[0-9]*/environ); do
      entry=${entry#/proc/}
      echo "${entry%/environ} $root"
    done
  else
    ps -A -o pid= -o ppid= -o state= | while read -r pid parent state; do
      case $state in Z*) ;; *) echo "$pid $parent";; esac
    done
  fi 2>/dev/null
}
descendants() {
  table=$(processes) found=" $root " grown=1
  [ "$table" ] || exit 1
  while [ "$grown" ]; do
    grown=
    while read -r pid parent; do
      case $found$spared in *" $pid "*) continue;; esac
      case $found in *" $parent "*) found="$found$pid " grown=1;; esac
    done <<EOF
$table
EOF
  done
  found=${found#" $root "}
}
kill_all() {
  stopped= round=0
  while descendants; [ "$found" != "$stopped" ] && [ $round -lt 20 ]; do
    kill -STOP $found 2>/dev/null
    stopped=$found round=$((round + 1))
  done
  round=0
  while [ "$found" ] && [ $round -lt 20 ]; do
    kill -KILL $found 2>/dev/null
    descendants
    round=$((round + 1))
  done
}
