# A link in the place of a job's directory is removed alone.
for id; do
  for d in "$job_home/$id" "$job_spare/$id"; do
    if [ -e "$d" ] || [ -L "$d" ]; then why=$(rm -rf -- "$d" 2>&1) || because "$why"; fi
  done
done
say ok
