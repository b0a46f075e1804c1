# A piece is acknowledged when it is in the queue completely; a link reserves its number, which no other writer can then
# take.
id=$1 eof=$2 nonce=$3 limit=$4
state=gone
! job_at "$id" || job_state
n=0
while [ "$state" = starting ] && [ "$n" -lt 100 ]; do n=$((n + 1)); sleep 0.05 || sleep 1; job_state; done 2>/dev/null
if [ "$state" != running ] || [ ! -p "$d/wake" ] || ! cd "$d/in"; then no stdin_closed; fi 2>/dev/null
umask 077
t=./.$nonce
tidy() { rm -f -- "$t"; }
job_last() {
  n=0
  for piece in [0-9]*; do case $piece in *[!0-9]*) ;; *) [ "$piece" -le "$n" ] || n=$piece;; esac; done
}
# ln fails if the name exists (link(2)), so of two writers one gets the number and the other tries the next.
job_take() {
  n=$((n + 1))
  until why=$(ln "$@" "$n" 2>&1); do
    case $why in *xists*) ;; *) because "$why";; esac
    [ ! -L "$n" ] || no stdin_closed
    n=$((n + 1))
  done
}
job_last
[ ! -L "$n" ] || no stdin_closed
read -r opened <./0
# Only GNU dd can test, without waiting, whether a process reads a pipe.
if [ "$opened" = 1 ]; then
  case $(dd if=/dev/null of="$d/0" oflag=nonblock conv=notrunc 2>&1) in *"o such device"*) no stdin_closed;; esac
fi
job_waiting() {
  sum=0
  while read -r mode links user group bytes rest; do
    case $bytes in ""|*[!0-9]*) ;; *) sum=$((sum + bytes));; esac
  done
  echo "$sum"
}
# shellcheck disable=SC2012
waiting=$(ls -ln | job_waiting)
if [ "$waiting" -ge "$limit" ]; then no no_space "The command has not read $waiting bytes yet."; fi
set -C
if [ "$size" != 0 ]; then
  why=$( { echo >"$t"; } 2>&1) || because "$why"
  set +C
  receiving=1 rest=$left
  say ok || exit
  why=$( { content >"$t"; } 2>&1) || because "$why"
  [ "$(wc -c <"$t")" -eq "$size" ] || no transfer_failed
  job_take "$t"
  tidy
else
  say ok
fi
[ ! "$eof" ] || job_take -s eof
# <> does not wait for a reader, and does not fail without one: the feeder may have ended meanwhile.
[ ! -p "$d/wake" ] || echo 1<>"$d/wake"
say ok
exit 0
