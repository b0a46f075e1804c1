# Runs a job's command in a session of its own, keeps its output in files, and records its end. Killing the command's
# process group does not kill the runner.
d=$1 id=$2 blocks=$3 mask=$4 seconds=$5 open=$6 terminator=$7 apart=$8 boot=$9
shift 9
clean=$1 cwd=$2
shift 2
[ ! "$clean" ] || set -- env -i "CONNMGR_JOB=$id" "PATH=$PATH" ${cwd:+"CONNMGR_CWD=$d/cwd"} "$@"
trap : INT QUIT TERM USR1 USR2 ALRM
umask 077
# A link in the place of the directory or of the file is not ours, so nothing is written through it. <> overwrites the
# line in place: a disk that has become full since the start has room for it, and a reader sees no empty file between.
# The last word tells a whole line from one that is being written.
record() { [ -L "$d" ] || [ -L "$d/end" ] || echo "$* ." 1<>"$d/end"; }
why=$(mkfifo "$d/1" "$d/2" ${open:+"$d/0"} 2>&1) || { echo "$why" >"$d/err"; record exited 126 over 0 0; exit; }
# At the limit of the file's size tee drops further output, but goes on reading.
# Not in the command's directory: its file system could not be unmounted until the last reader has ended.
keep() {
  cd /
  trap '' INT QUIT TERM USR1 USR2 ALRM XFSZ
  ulimit -f "$blocks"
  exec tee "$d/$1" <"$d/$2" >/dev/null
}
time_out() {
  trap exit TERM
  cd /
  sleep "$seconds" &
  trap 'kill "$!"; exit' TERM
  wait "$!"
  exec /bin/sh -c "$terminator" sh "$d" "$id" TERM 50 timed_out "$boot"
}
feed() {
  trap exit TERM
  cd "$d/in" || exit
  # <> opens a named pipe without waiting for its other end (Linux, fifo(7)); 4 waits until the command has opened its
  # input, so that nothing is written before.
  exec 3<>"$d/wake" 4>"$d/0"
  echo 1 1<>./0
  n=1
  while :; do
    while [ -f "$n" ]; do
      # In the background, because a shell runs a trap only after the program in its foreground has ended (POSIX.1-2017,
      # 2.11), and `wait` returns for it.
      cat "$n" >&4 &
      trap 'kill "$!"; exit' TERM
      wait "$!" || break 2
      true >"$n"
      # A writer that has just chosen a number must still find it taken.
      [ "$n" -le 1000 ] || rm -f "$((n - 1000))"
      n=$((n + 1))
    done
    [ ! -L "$n" ] || break
    read -r _ <&3
  done
  rm -f "$d/wake"
}
# Whether the child $1 has ended; bash notices the end by itself.
gone() {
  if read -r line <"/proc/$1/stat"; then case ${line##*") "} in [ZX]*) return 0;; esac; return 1; fi
  [ -e /proc/self/stat ] || case $(ps -o state= -p "$1") in ""|[ZX]*) ;; *) return 1;; esac
}
keep out 1 7<&- &
out=$!
keep err 2 7<&- &
err=$!
timer=0 feeder=0 stdin=/dev/null
[ ! "$seconds" ] || { time_out 7<&- & timer=$!; }
[ ! -f "$d/stdin" ] || stdin=$d/stdin
[ ! "$open" ] || { stdin=$d/0; feed 7<&- & feeder=$!; }
record started "$out" "$err" "$timer" "$feeder"
# In the foreground, because a shell without job control makes background processes ignore INT and QUIT.
(
  unset CONNMGR_SPOOL
  export CONNMGR_JOB="$id"
  umask "$mask"
  exec $apart "$@"
) <"$stdin" >"$d/1" 2>"$d/2"
s=$?
[ "$s" -le 256 ] || s=$((s - 128))
cd /
state=exited
how=
if [ -f "$d/kill" ] && [ ! -L "$d/kill" ]; then read -r how name rest <"$d/kill"; fi
case $how in
  timed_out|killed) state=$how;;
  signal) [ "$s" -le 128 ] || case $(kill -l "$s") in "$name"|"SIG$name") state=killed;; esac;;
esac
record "$state" "$s" open 0 0
[ "$stdin" != "$d/stdin" ] || [ -L "$d" ] || rm -f "$stdin"
[ "$timer" = 0 ] || [ "$state" = timed_out ] || kill "$timer"
[ "$feeder" = 0 ] || { kill "$feeder"; [ -L "$d" ] || rm -rf "$d/wake" "$d/in"; }
# A child left by the command may hold its streams open for ever; they count as ended after a second.
n=0
[ -e /proc/self/stat ] || n=100
until { gone "$out" && gone "$err"; } || [ "$n" -ge 120 ]; do
  n=$((n + 1))
  [ "$n" -le 100 ] || sleep 0.05 || { sleep 1; n=120; }
done
cut_out=0 cut_err=0
! gone "$out" || wait "$out" || cut_out=1
! gone "$err" || wait "$err" || cut_err=1
record "$state" "$s" over "$cut_out" "$cut_err"
