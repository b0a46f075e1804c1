# Prints a line for each job of the arguments, then what ls prints about the files of their output. Jobs whose output is
# a link, or no file, are left out of the latter.
for id; do
  state=gone cap= phase= status= over= cut_out= cut_err=
  if job_at "$id" && job_file "$d/out" && job_file "$d/err"; then job_state; fi
  case $state in
    starting|running|lost) echo "$id $state ${cap:--} - - 0 0";;
    gone) echo "$id gone - - - 0 0";;
    *) echo "$id $state ${cap:--} $status $over $cut_out $cut_err";;
  esac
done
ids=$*
job_sizes() {
  [ -d "$1" ] && cd "$1" || return
  set --
  for id in $ids; do [ ! -d "$id" ] || set -- "$@" "$id/out" "$id/err"; done
  [ ! "$1" ] || ls -ldn "$@"
} 2>/dev/null
(job_sizes "$job_home")
(job_sizes "$job_spare")
true
