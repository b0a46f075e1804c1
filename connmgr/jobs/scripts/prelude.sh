# Sets d to the directory of job $1, which must belong to this user and be no link.
job_at() {
  for d in "$job_home/$1" "$job_spare/$1"; do
    if [ -O "$d" ] && [ -d "$d" ] && [ ! -L "$d" ]; then return 0; fi
  done
  return 1
}
# Prints text that is too long for an argv; a printf that is a program would need it in its argv.
if PATH=/dev/null command -v printf >/dev/null; then job_put() { printf %s "$1"; }
else job_put() { print -rn -- "$1"; }; fi
