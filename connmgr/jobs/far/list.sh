# The jobs that began $1 seconds ago or more: as stat has it or, where there is none, find, which counts whole days.
least=$1
say ok
now=$(date +%s)
for d in "$job_home"/* "$job_spare"/*; do
  case ${d##*/} in *[!0-9a-f]*|"") continue;; esac
  [ -O "$d" ] && [ -d "$d" ] && [ ! -L "$d" ] || continue
  born=$(stat -c %Y -- "$d/runner" || stat -f %m -- "$d/runner") 2>/dev/null
  age=-
  case $born in ""|*[!0-9]*) ;; *) age=$((now - born));; esac
  if [ "$least" = 0 ]; then :
  elif [ "$age" = - ]; then
    [ "$(find "$d/runner" -prune -mtime "+$(( (least - 1) / 86400 ))" 2>/dev/null)" ] || continue
  else
    [ "$age" -ge "$least" ] || continue
  fi
  echo "${d##*/} $age"
done
