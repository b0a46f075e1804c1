"""The words shared by the engine and a supervisor.

The programs of ``far/`` define the functions, and frames call them. ``connmgr.engine.marks`` explains the letters,
which the programs print after the nonce.
"""

from __future__ import annotations

GONE = b"_cm_gone"
"""``letter nonce``: reports why the command does not run."""

DUMP = b"_cm_dump"
"""``status nonce``: prints the state, and ends the subshell."""

PUT = b"_cm_put"
"""``text``: prints bytes in the escapes of ``printf %b``, as a command's input."""

HOLD, FREE = b"_cm_hold", b"_cm_free"
"""Reserve and release the descriptors that scripts use; between them the streams of a command are kept."""

EXEC = b"_cm_exec"
"""``argv…``: becomes a program of PATH whose name ``exec`` would read as something else."""

END = b"_cm_end"
"""``status nonce``: the supervisor reports the end of a command."""

DONE = b"_cm_done"
"""``status nonce``: a subshell reports its own end; the supervisor then only needs :data:`RENEW`."""

RENEW = b"_cm_renew"
"""Reopens the session's streams."""

FUNCTION_PREFIX = "_cm_"
"""The prefix of all functions of a supervisor, even those that no frame calls."""

DIRECTORY = "c"
MOVED = "p"
VARIABLES = "v"
REST = "x"
REFUSED = "g"
LOST = "l"

LETTERS = {"directory": DIRECTORY, "moved": MOVED, "variables": VARIABLES, "rest": REST}
"""The letters by their names in the programs of ``far/``."""
