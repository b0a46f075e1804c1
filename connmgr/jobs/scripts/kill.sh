id=$1 signal=$2 grace=$3 why=$4
# Without its directory, the processes of a job are found only by their environment.
job_at "$id" || d=/dev/null
trap '' HUP
refused=$(CONNMGR_SPOOL=$id $job_around $job_apart /bin/sh -c "$job_terminator" sh \
  "$d" "$id" "$signal" "$grace" "$why" "$job_boot" </dev/null 2>/dev/null &)
[ "$refused" ] || no file_operation_failed "It has neither /proc nor ps, by which processes are found."
say ok "$refused"
set -- "$id"
