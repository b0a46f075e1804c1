# How the job in $d with the uuid $id is, in $state; where it runs, $pid is its runner and $spared the runner's helpers.
job_carries() {
  while read -r line || [ "$line" ]; do
    case $line in *"CONNMGR_SPOOL=$id"*) return 0;; esac
  done <"/proc/$1/environ" || [ ! -e "/proc/$1/environ" ]
} 2>/dev/null
job_line() { read -r one many && set -- $many && echo "$one $1_$2_$3_$4_$5"; }
job_process() {
  if [ -e "/proc/$$/stat" ]; then
    read -r line <"/proc/$1/stat" || return 1
    line=${line##*") "}
    born=$(set -- $line; echo "$1 ${20}")
  else
    born=$(ps -o state= -o lstart= -p "$1" | job_line)
  fi
  case $born in ""|[ZX]*) return 1;; esac
  born=${born#* }
} 2>/dev/null
job_runner_is() {
  pid= start= boot= cap=
  if [ -f "$d/runner" ] && [ ! -L "$d/runner" ]; then read -r pid start boot cap last <"$d/runner"; fi
}
job_lives() {
  case $pid in ""|*[!0-9]*) return 1;; esac
  [ "$boot" = "$job_boot" ] && job_process "$pid" && [ "$born" = "$start" ] && job_carries "$pid"
}
job_record() {
  phase= status= over= cut_out= cut_err= last=
  if [ -f "$d/end" ] && [ ! -L "$d/end" ]; then read -r phase status over cut_out cut_err last <"$d/end"; fi
  case "$phase $last" in "exited ."|"killed ."|"timed_out .") state=$phase; return 0;; esac
  return 1
}
job_state() {
  spared=
  job_runner_is
  job_record && return
  if job_lives; then
    state=running spared=" $status $over $cut_out $cut_err "
  elif ! job_record; then
    # The runner may have ended between the two looks.
    state=lost
  fi
}
