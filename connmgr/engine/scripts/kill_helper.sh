# Ends the helper whose shells have $1 in their argv, and all that it has started. One of them may wait in open(2) for
# ever, for the other end of a named pipe that somebody has put in a file's place. TERM comes first, so that a program
# can remove its temporary file. The pattern does not find itself in the argv of this shell and of grep.
helpers() {
  root=
  if [ -d /proc/self ]; then
    for p in $(grep -lsz -e "$1" /proc/[0-9]*/cmdline); do
      p=${p#/proc/} p=${p%/*}
      # Whoever sees the argv of a helper may give a program of their own the same one.
      [ ! -O "/proc/$p" ] || root="$root$p "
    done
  else
    root=$(ps -A -ww -o pid= -o args= | while read -r p words; do
      # shellcheck disable=SC2254 # a pattern
      case $words in *$1*) printf '%s ' "$p";; esac
    done)
  fi
  root=${root% }
  [ "$root" ]
}
carried= spared=
for signal in TERM KILL; do
  helpers "$1" || exit 0
  descendants
  kill -s $signal $root $found 2>/dev/null
  [ $signal = KILL ] || sleep 1
done
