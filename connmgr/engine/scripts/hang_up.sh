# Sends HUP to the processes of a stream, and to all below them. Each has CONNMGR_STREAM=$1.PID in its environment, with
# the number of the stream's first process; a login shell that runs the command itself has that in its argv. The
# brackets keep grep from finding its own argv. As after a logout, two kinds run on with all below them: what has left
# for a session of its own and is nobody's child any more, such as the server of tmux, and what ignores HUP, such as
# mosh's.
carried="CONNMGR_STREAM=$1\.[0-9]*" spoken="CONNMGR_[S]TREAM=$1\."
session_of() {
  { read -r state </proc/"$1"/stat; } 2>/dev/null || return
  # Behind the name, which may have blanks: state, parent, group and session.
  state=${state##*") "}
  state=${state#* } state=${state#* } state=${state#* }
  echo "${state%% *}"
}
carriers=$(grep -lsz "$carried" /proc/[0-9]*/environ)
speakers=$(grep -lsz "$spoken" /proc/[0-9]*/cmdline)
# bash complains of the NUL behind each.
{ first=$(grep -hsoaz "$carried" /proc/[0-9]*/environ); } 2>/dev/null
first=${first#*.} first=${first%%[!0-9]*}
if [ "$first" ]; then
  session=$(session_of "$first") || session=$first
else
  # A login shell whose only carriers are programs that end sooner than all processes are looked at: some of those found
  # above have ended by now.
  for entry in $speakers $carriers; do
    entry=${entry#/proc/}
    session=$(session_of "${entry%%/*}") && break
  done
fi
spared=" "
# Signals are counted from 1, at the low end of the mask.
for entry in $(grep -ls '^SigIgn:.*[13579bdf]$' /proc/[0-9]*/status); do
  entry=${entry#/proc/} spared="$spared${entry%%/*} "
done
root=
for entry in $carriers $speakers; do
  entry=${entry#/proc/} entry=${entry%/*}
  case $spared in *" $entry "*) continue;; esac
  [ "$(session_of "$entry")" != "$session" ] || root="$root$entry "
done
root=${root% } carried= spoken=
[ "$root" ] || exit 0
descendants
kill -HUP $root $found 2>/dev/null || :
