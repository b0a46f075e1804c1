# If a link is in the place of a job's directory, only the link is removed.
# It may have been put there since the helper began.
job_look_at_top
for id; do
  for d in "$job_home/$id" "$job_spare/$id"; do
    # Input that came before its job, if the machine stopped then.
    for held in "${d%/*}/.$id".*; do [ ! -e "$held" ] || rm -f -- "$held"; done
    [ -e "$d" ] || [ -L "$d" ] || continue
    # The runner of a job that has just ended may still write its last record, which makes rm fail.
    n=0
    until why=$(rm -rf -- "$d" 2>&1); do
      n=$((n + 1))
      [ "$n" -lt 3 ] || because "$why"
    done
  done
done
say ok
