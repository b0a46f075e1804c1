# Prints for each process that has one of the arguments in its environment, and for each below such a one, whether it
# waits for input: "NAME=VALUE reads" where /proc shows that it is blocked in reading from its terminal or from the open
# input of its job, "NAME=VALUE may" where it may be. After that "secret", if its terminal does not show what is typed.
say ok
if [ ! -e /proc/self/stat ]; then
  for one; do echo "$one may"; done
  exit 0
fi
wanted=" $* "
IFS=$newline
# One grep for all processes, because a shell reads a file byte by byte.
states=$(grep -Hsoa '.*) [A-Za-z] [0-9]*' /proc/[0-9]*/stat)
carriers=$(grep -HsoazE '^CONNMGR_(JOB|TERMINAL)=[0-9a-f-]+$' /proc/[0-9]*/environ | tr '\0' '\n')
set -f
parents=
for entry in $states; do
  parent=${entry##*" "} entry=${entry#/proc/}
  parents="$parents${entry%%/*}:$parent$newline"
done
found=" "
for entry in $carriers; do
  case $wanted in *" ${entry#*:} "*) entry=${entry#/proc/} found="$found${entry%%/*}=${entry#*:} ";; esac
done
grown=1
[ "$found" != " " ] || grown=
while [ "$grown" ]; do
  grown=
  for entry in $parents; do
    case $found in *" ${entry%:*}="*) continue;; esac
    case $found in
      *" ${entry#*:}="*) one=${found#*" ${entry#*:}="} found="$found${entry%:*}=${one%% *} " grown=1;;
    esac
  done
done
# Sets kind: what descriptor $1 of the process is.
wait_kind() {
  kind=other
  case $(readlink "/proc/$pid/fd/$1") in
    /dev/pts/*|/dev/tty*|/dev/console) kind=terminal;;
    */"${one#*=}/0") kind=input;;
    "") kind=hidden;;
  esac
} 2>/dev/null
# Whether the process reads from descriptor $1, which is its job's open input or the terminal that it has in front.
wait_from() {
  wait_kind "$1"
  case $kind in input) verdict=reads;; terminal) [ ! "$front" ] || verdict=reads;; esac
}
# It waits for several files, and cannot be asked for which.
wait_for_some() {
  wait_kind 0
  case $kind in input) verdict=may;; terminal) [ ! "$front" ] || verdict=may;; esac
}
# Without the permission to trace it (Yama's ptrace_scope), the kernel still names the function that it sleeps in.
wait_by_function() {
  { read -r sleeps <"/proc/$pid/wchan" || :; } 2>/dev/null
  case $sleeps in
    # Another user's, such as a sudo: only the terminal says who has it in front.
    0|"") wait_kind 0; case $front$kind in 1*|hidden|input) verdict=may;; esac;;
    n_tty_read) [ ! "$front" ] || verdict=reads;;
    # Terminals and sockets sleep there, so it must have no socket.
    wait_woken) case $(ls -l "/proc/$pid/fd" 2>/dev/null) in *" socket:"*) ;; *) wait_from 0;; esac;;
    *pipe_read|pipe_wait)
      wait_kind 0
      # It may read from another pipe, which is not open for writing alone.
      # shellcheck disable=SC2010 # the names there are numbers
      if [ "$kind" = input ] && ! ls -l "/proc/$pid/fd" 2>/dev/null | grep -q '^lr.* pipe:'; then verdict=reads; fi;;
    *poll*|*select*|ep_*) wait_for_some;;
  esac
}
IFS=' '
for entry in $found; do
  pid=${entry%%=*} one=${entry#*=} verdict= front= secret= sleeps= call= first=
  { read -r line <"/proc/$pid/stat"; } 2>/dev/null || continue
  # After the process's name, which may have any character but a newline:
  # its state, parent, process group, session, terminal, and the group in the front of that.
  set -- ${line##*") "}
  [ "$1" = S ] || continue
  [ "$5" = 0 ] || [ "$3" != "$6" ] || front=1
  [ ! "$wait_reads" ] || { read -r call first rest <"/proc/$pid/syscall" || :; } 2>/dev/null
  case $call in
    "") wait_by_function;;
    [0-9]*)
      # shellcheck disable=SC2004 # not every shell reads a variable's hexadecimal digits there
      case $wait_reads in *" $call "*) wait_from "$(($first))";; esac
      case $wait_selects in
        # Of descriptors below 1.
        *" $call "*) if [ "$first" = 0x1 ]; then wait_from 0; else wait_for_some; fi;;
      esac
      case $wait_polls in *" $call "*) wait_for_some;; esac;;
  esac
  [ "$verdict" ] || continue
  # Unix98 terminals have the major number 136. In a subshell, which cannot get a controlling terminal.
  if [ "$front" ] && [ "$(($5 >> 8 & 4095))" = 136 ]; then
    shows=1 edits=1
    for word in $(stty -a <"/dev/pts/$(($5 & 255 | $5 >> 12 & 1048320))" 2>/dev/null | tr ';\n' '  '); do
      case $word in -echo) shows=;; -icanon) edits=;; esac
    done
    [ "$shows" ] || [ ! "$edits" ] || secret=secret
  fi
  echo "$one $verdict $secret"
done
exit 0
