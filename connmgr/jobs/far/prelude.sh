# The directory of job $1, in $d: one of this user's, and no link.
job_at() {
  for d in "$job_home/$1" "$job_spare/$1"; do
    if [ -O "$d" ] && [ -d "$d" ] && [ ! -L "$d" ]; then return 0; fi
  done
  return 1
}
# Text that no argv may hold; where printf is a program, it would be one.
if PATH=/dev/null command -v printf >/dev/null; then job_put() { printf %s "$1"; }
else job_put() { print -rn -- "$1"; }; fi
