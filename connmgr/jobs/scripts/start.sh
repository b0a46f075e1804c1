# Before the answer only one mkdir starts a process.
id=$1 cap=$2 seconds=$3 open=$4 at=$5 cwd=$6 before=$7 script=$8
shift 8
trap '' HUP
unset CDPATH
cd -- "${at:-${HOME:-/}}" 2>/dev/null || { [ ! "$at" ] && cd /; } || no no_such_directory
[ ! "$cwd" ] || cd -- "$cwd" 2>/dev/null || no no_such_directory
! job_at "$id" || no file_exists
umask 077
job_ours() { [ -O "$1" ] && [ -d "$1" ] && [ -w "$1" ]; }
job_home_is_ours() {
  # The owner of a directory above, such as the caller of a sudo that keeps HOME, could replace it.
  [ "$job_home" ] && job_ours "$job_home" && job_ours "${job_home%/*}" && job_ours "${job_home%/*/*}" || return 1
  [ "$XDG_STATE_HOME" ] || { job_ours "$HOME/.local" && job_ours "$HOME"; }
}
job_base() {
  base=$job_home
  job_home_is_ours && return
  if [ "$XDG_STATE_HOME" ] || [ -O "$HOME" ]; then
    why=$(mkdir -p -- "$job_home" 2>&1)
    case ${why##*: } in *"o space left"*|*"uota exceeded"*) because "$why";; esac
    job_home_is_ours && return
  fi
  base=$job_top/jobs why=
  [ -e "$job_top" ] || [ -L "$job_top" ] || why=$(mkdir -- "$job_top" 2>&1)
  # Before anything is made in it.
  if ! job_top_is_ours; then
    case $why in *"not found"*) because "$why";; esac
    why=${why##*: }
    no permission_denied "${why:-$job_top does not belong to it alone: have it removed, or set TMPDIR there.}"
  fi
  [ -d "$base" ] || why=$(mkdir -- "$base" 2>&1)
  job_ours "$base" || no permission_denied "${why##*: }"
}
job_base
d=$base/$id
# The input comes first, so that a job whose input did not arrive never begins.
if [ "$fed" ]; then
  held=$base/.$id.$$
  tidy() { rm -f -- "$held"; }
  say ok || exit
  receiving=1 rest=$left
  why=$( { content >"$held"; } 2>&1) || because "$why"
  [ "$(wc -c <"$held")" -eq "$size" ] || no transfer_failed
  receiving=
fi
if ! mkdir -- "$d" ${open:+"$d/in"} 2>/dev/null; then why=$(mkdir -- "$d" ${open:+"$d/in"} 2>&1) || because "$why"; fi
line="                                                               "
# What is recorded later overwrites these lines in place, so that a disk that is full by then keeps the status.
job_written() {
  echo "$line" >"$d/runner" && echo "$line" >"$d/end" && echo "$line" >"$d/kill" && true >"$d/out" && true >"$d/err" && { [ ! "$open" ] || { echo 0 >"$d/in/0" && mkfifo "$d/wake"; }; } &&
    { [ ! "$fed" ] || mv -- "$held" "$d/stdin"; }
} 2>/dev/null
if ! job_written; then
  why=$(echo "$line$line" | cat 2>&1 >"$d/why") && why=
  rm -rf -- "$d"
  because "${why:-No space left}"
fi
job_become() {
  CONNMGR_SPOOL=$id
  export CONNMGR_SPOOL
  exec $job_around $job_apart /bin/sh -c "$job_runner" sh "$d" "$id" "$((cap / 512 + 1))" "$job_mask" "$seconds" \
    "$open" "$job_terminator" "$job_apart" "$job_boot" "$@" 7<&6 6<&- </dev/null >/dev/null 2>&1
}
job_announce() {
  job_process "$1" || born=-
  echo "$1 $born $job_boot $cap ." 1<>"$d/runner"
  say ok "$1 $born $job_boot ${job_warning:--} $d"
}
# Background processes of a shell without job control ignore INT and QUIT for ever. So the runner begins in the
# foreground, and ends the shell that waits for it, quietly if possible.
job_begin() {
  job_self
  parent=$self
  job_put "$before$job_setting$script" 2>/dev/null | {
    job_self
    if [ "$self" = "$parent" ]; then
      job_become "$@" &
      job_announce "$!"
    else
      # The reader of the answer may be gone; the job begins all the same.
      trap '' PIPE
      job_announce "$self" 2>/dev/null
      trap - PIPE
      kill -PIPE "$parent"
      kill -KILL "$parent" 2>/dev/null
      job_become "$@"
    fi
  } 6<&0
}
# A program that reads input must end with 0, or its helper ends.
if [ "$fed" ]; then (job_begin "$@"); exit 0; else job_begin "$@"; fi
