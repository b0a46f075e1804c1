# Continues the process $p, and the stopped processes above it. A program that waits for a process may stop when that
# stops, as sudo and su do, and then would not notice its end.
resume() {
  state=T
  while [ "$p" -gt 1 ] && case $state in [TZ]*) ;; *) false;; esac; do
    kill -CONT "$p"
    line=
    read -r line <"/proc/$p/stat"
    line=${line##*") "} line=${line#* } p=${line%% *} p=${p:-0} line=
    read -r line <"/proc/$p/stat"
    state=${line##*") "}
  done
} 2>/dev/null
