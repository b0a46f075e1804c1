say ok
now=$(date +%s)
for d in "$job_home"/* "$job_spare"/*; do
  case ${d##*/} in *[!0-9a-f]*|"") continue;; esac
  [ -O "$d" ] && [ -d "$d" ] && [ ! -L "$d" ] || continue
  born=$(stat -c %Y -- "$d/runner" || stat -f %m -- "$d/runner" || echo -) 2>/dev/null
  case $born in *[!0-9]*) echo "${d##*/} -";; *) echo "${d##*/} $((now - born))";; esac
done
