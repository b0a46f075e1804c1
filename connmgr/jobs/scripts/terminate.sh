# Sends $3 to the command of the job $2 in $1, to all processes below it and to those that left its tree. With $4, waits
# so many tenths of a second and kills the rest. $5 is recorded as the reason, $6 is the system's boot.
d=$1 id=$2 signal=$3 grace=$4 why=$5 job_boot=$6
carried=CONNMGR_JOB=$id
find_job() {
  job_state
  root=-
  [ "$phase" != started ] || [ "$state" != running ] || root=$pid
  descendants
}
pause() { sleep 0.05 || sleep 1; } 2>/dev/null
find_job
n=0
while [ "$state" = starting ] && [ "$n" -lt 100 ]; do n=$((n + 1)); pause; find_job; done
if [ "$state" = running ] && job_file "$d/kill"; then
  read -r noted rest <"$d/kill"
  case $noted in timed_out|killed) ;; *) echo "$why $signal ." 1<>"$d/kill";; esac
fi
n=0
until [ "$found" ] || [ "$state" != running ] || [ "$n" -ge 100 ]; do n=$((n + 1)); pause; find_job; done
refused=0 sent=" " n=0
if [ "$signal" = KILL ]; then
  kill_all
else
  # Processes that began meanwhile get it too; each gets it once.
  while fresh && [ "$n" -lt 5 ]; do
    for p in $new; do kill -s "$signal" "$p" 2>/dev/null || [ ! -d "/proc/$p" ] || refused=$((refused + 1)); done
    sent=$sent$new n=$((n + 1))
    find_job
  done
fi
echo "$refused"
exec >/dev/null 2>&1
[ "$grace" ] || exit 0
# In hundredths of a second, by a clock that cannot be set.
now() {
  { read -r now rest </proc/uptime && now=${now%.*}${now#*.}; } 2>/dev/null || now=$((${now:-0} + 20))
}
now
patience=$((now + grace * 10))
while find_job; [ "$found" ] && [ "$now" -lt "$patience" ]; do
  sleep 0.2 || { sleep 1; [ -e /proc/uptime ] || now=$((now + 80)); }
  now
done
kill_all
