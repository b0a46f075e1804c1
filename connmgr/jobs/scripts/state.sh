# Finds the state of the job in $d with the uuid $id. If it runs, $pid is its runner and $spared are the runner's
# helpers. An environment that cannot be read proves nothing.
job_carries() {
  job_marked=1
  {
    job_marked=
    while read -r line || [ "$line" ]; do
      case $line in *"CONNMGR_SPOOL=$id"*) job_marked=1; break;; esac
    done
  } <"/proc/$1/environ"
  [ "$job_marked" ]
} 2>/dev/null
# Read the fields after the process's name in /proc, or the words of ps.
job_stat() { alive=$1 born=${20}; }
job_ps() { alive=$1 born=$2_$3_$4_$5_$6; }
# Finds the process that runs this: $$ is the shell that it was forked from, which may have ended. A shell reads byte by
# byte: status names the process within 50 bytes, stat has 300.
job_self() {
  self=
  while read -r name self rest && [ "$name" != Tgid: ]; do :; done </proc/self/status
  [ "$self" ] || self=$(exec /bin/sh -c 'echo "$PPID"')
} 2>/dev/null
job_process() {
  if [ -e /proc/self/stat ]; then
    read -r line <"/proc/$1/stat" || return 1
    job_stat ${line##*") "}
  else
    # shellcheck disable=SC2046
    job_ps $(ps -o state= -o lstart= -p "$1")
    # If there is no ps either, nothing else is known of a process.
    [ "$alive" ] || job_self
    if [ ! "$alive" ] && ! ps -p "$self" >/dev/null && kill -0 "$1"; then alive=R born=-; fi
  fi
  case $alive in ""|[ZX]*) return 1;; esac
} 2>/dev/null
job_file() { [ -f "$1" ] && [ ! -L "$1" ]; }
job_runner_is() {
  pid= start= boot= cap=
  if job_file "$d/runner"; then read -r pid start boot cap last <"$d/runner"; fi
}
job_lives() {
  case $pid in ""|*[!0-9]*) return 1;; esac
  [ "$boot" = "$job_boot" ] && job_process "$pid" && [ "$born" = "$start" ] || return 1
  # The runner carries the mark when it has begun to record its state.
  [ "$phase" != started ] || job_carries "$pid"
}
job_record() {
  phase= status= over= cut_out= cut_err= last=
  if job_file "$d/end"; then read -r phase status over cut_out cut_err last <"$d/end"; fi
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
    # The runner may have ended between the two checks, or has not begun.
    state=lost
    [ "$pid" ] || [ "$phase" ] || ! job_file "$d/runner" || state=starting
  fi
}
