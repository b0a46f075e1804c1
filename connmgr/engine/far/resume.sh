# Continues the process $p, and those above it that are stopped: who waits for a process that stops may stop as well, as
# sudo and su do, and then would not notice its end.
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
