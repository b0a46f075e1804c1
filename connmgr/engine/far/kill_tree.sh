# Only builtins and /proc where there is one: minimal containers have no ps. Everything found is stopped before
# anything is killed, so that nothing can fork its way out; what left the tree is found by its environment.
root=$1 cookie=$2 word=$3
# A process that has got the number since does not carry the word.
[ ! -r "/proc/$root/environ" ] || grep -qsF "CONNMGR_BOOT=$word" "/proc/$root/environ" || exit 1
processes() {
  if [ -r /proc/self/stat ]; then
    for entry in /proc/[0-9]*; do
      read -r line <"$entry/stat" || continue
      line=${line##*) } state=${line%% *} line=${line#* }
      case $state in Z|X) ;; *) echo "${entry#/proc/} ${line%% *}";; esac
    done
    for entry in $(grep -lsF "CONNMGR_COMMAND=$cookie" /proc/[0-9]*/environ); do
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
      case $found in *" $pid "*) continue;; esac
      case $found in *" $parent "*) found="$found$pid " grown=1;; esac
    done <<EOF
$table
EOF
  done
  found=${found#" $root "}
}
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
kill -CONT "$root" 2>/dev/null
[ -z "$found" ]
