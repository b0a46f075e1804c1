"""Ends the processes of a command from a second channel, because the supervisor waits for them and takes no orders."""

from __future__ import annotations

import contextlib
import shlex
import time

from connmgr.engine.script import script_argv
from connmgr.errors import OperationError
from connmgr.plugin import Transport

# Only builtins and /proc where there is one: minimal containers have no ps. Everything found is stopped before
# anything is killed, so that nothing can fork its way out; what left the tree is found by its environment.
_SCRIPT = r"""
root=$1 cookie=$2 word=$3
# A process that has got the number since does not carry the word.
[ ! -r "/proc/$root/environ" ] || grep -qsF "CONNMGR_BOOT=$word" "/proc/$root/environ" || exit 1
processes() {
  if [ -r /proc/self/stat ]; then
    for entry in /proc/[0-9]*; do
      read -r line <"$entry/stat" || continue
      line=${line##*) } state=${line%% *} line=${line#* }
      case $state in Z|X) ;; *) echo "${entry#/proc/} ${line%% *}";; esac
    done
    for entry in $(grep -lsF "CONNMGR_COMMAND=$cookie" /proc/[0-9]*/environ); do
      entry=${entry#/proc/}
      echo "${entry%/environ} $root"
    done
  else
    ps -A -o pid= -o ppid= -o state= | while read -r pid parent state; do
      case $state in Z*) ;; *) echo "$pid $parent";; esac
    done
  fi 2>/dev/null
}
descendants() {
  table=$(processes) found=" $root " grown=1
  [ "$table" ] || exit 1
  while [ "$grown" ]; do
    grown=
    while read -r pid parent; do
      case $found in *" $pid "*) continue;; esac
      case $found in *" $parent "*) found="$found$pid " grown=1;; esac
    done <<EOF
$table
EOF
  done
  found=${found#" $root "}
}
stopped= round=0
while descendants; [ "$found" != "$stopped" ] && [ $round -lt 20 ]; do
  kill -STOP $found 2>/dev/null
  stopped=$found round=$((round + 1))
done
round=0
while [ "$found" ] && [ $round -lt 20 ]; do
  kill -KILL $found 2>/dev/null
  descendants
  round=$((round + 1))
done
kill -CONT "$root" 2>/dev/null
[ -z "$found" ]
"""


_KILL_SUPERVISOR = 'grep -qsF "CONNMGR_BOOT=$2" "/proc/$1/environ" && kill -KILL "$1"'


def kill_tree(transport: Transport, root: int, word: str, cookie: str, timeout: float) -> bool:
    """Kill what runs below the supervisor ``root``, and what carries ``cookie`` in its environment, but not it itself.

    Returns whether nothing was left within ``timeout`` seconds; False too where no second channel can be had, or where
    ``root`` was not started with ``word``.
    """
    return _run(transport, script_argv(_SCRIPT, (str(root), cookie, word)), timeout)


def kill_supervisor(transport: Transport, pid: int, word: str, timeout: float) -> bool:
    """Kill the supervisor ``pid``, which was started with ``word``, within ``timeout`` seconds; return whether it was.

    Where there is no /proc it is left to the end of its streams.
    """
    return _run(transport, script_argv(_KILL_SUPERVISOR, (str(pid), word)), timeout)


def _run(transport: Transport, argv: list[str], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    try:
        channel = transport.open_channel(argv, timeout=timeout)
    except OperationError:
        return False
    try:
        # A start-up file may have replaced the shell by one that reads its commands from standard input.
        with contextlib.suppress(OSError):
            channel.sendall(b"exec " + shlex.join(argv).encode() + b"\n", max(0.0, deadline - time.monotonic()))
            channel.shutdown_write()
        return channel.exit_status(max(0.0, deadline - time.monotonic())) == 0
    except (OSError, EOFError):
        return False
    finally:
        channel.close()
