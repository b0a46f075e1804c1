# Lists the jobs that began at least $1 seconds ago, by stat, or if that is missing by find, which counts whole days.
# With 0, all jobs are listed before their ages are known.
least=$1
say ok
now=$(date +%s)
option= format=
if stat -c %Y /; then option=-c format='%Y %n'; elif stat -f %m /; then option=-f format='%m %N'; fi >/dev/null 2>&1
# One program for many jobs.
job_ages() {
  [ "$1" ] || return
  if [ "$least" = 0 ]; then for runner; do echo "${runner%/*} -"; done; fi
  if [ "$option" ]; then
    stat "$option" "$format" -- "$@" | while read -r born runner; do
      age=$((now - born))
      if [ "$least" = 0 ] || [ "$age" -ge "$least" ]; then echo "${runner%/*} $age"; fi
    done
  elif [ "$least" != 0 ]; then
    find "$@" -prune -mtime "+$(( (least - 1) / 86400 ))" | while read -r runner; do echo "${runner%/*} -"; done
  fi
}
job_listed() {
  [ -d "$1" ] && cd "$1" || return
  set --
  for d in *; do
    case $d in *[!0-9a-f]*) continue;; esac
    [ -O "$d" ] && [ -d "$d" ] && [ ! -L "$d" ] || continue
    set -- "$@" "$d/runner"
    [ "$#" -lt 100 ] || { job_ages "$@"; set --; }
  done
  job_ages "$@"
} 2>/dev/null
(job_listed "$job_home")
(job_listed "$job_spare")
true
