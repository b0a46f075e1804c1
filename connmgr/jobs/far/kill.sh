id=$1 signal=$2 grace=$3 why=$4
refused=0
if job_at "$id"; then
  trap '' HUP
  refused=$(CONNMGR_SPOOL=$id $job_around $job_apart /bin/sh -c "$job_terminator" sh \
    "$d" "$id" "$signal" "$grace" "$why" "$job_boot" </dev/null 2>/dev/null &)
fi
say ok "${refused:-0}"
set -- "$id"
