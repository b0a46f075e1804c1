"""Boots the far side's shell, whatever its start-up files do before they let a command run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from connmgr.engine.dialects import DIALECTS
from connmgr.engine.nonce import new_nonce
from connmgr.engine.script import Source, fill
from connmgr.errors import UnsupportedShell
from connmgr.plugin import Channel, Deadline
from connmgr.printable import in_one_line

NUDGE_SECONDS = (1.0, 2.0, 4.0)
"""Times at which a silent shell gets its command on standard input too: its start-up files may wait for a line, or may
have replaced it with another shell."""

ECHO_SECONDS = 0.5
"""Interval at which a nudged shell is asked for an echo; it may have lost its input to an earlier nudge."""

OUTPUT_BYTES = 64 << 10
"""Bytes of output that are kept, to find the announcement and to quote in an error."""


LINE_BYTES = 4200
"""Longest announcement in bytes: a word, a name and a path (PATH_MAX of Linux is 4096)."""

# Protects the channel's output from commands, and from shells that consider themselves interactive on a terminal.
_ASIDE = "8>&1 9>&2 >/dev/null 2>&1"

_BOOT = Source(__package__, "boot")


@cache
def boot_script() -> str:
    """Return the ``sh -c`` script that announces the far side's shell and becomes the supervisor."""
    interpreted = "|".join(name for dialect in DIALECTS if dialect.interpreter for name in dialect.names)
    branches = (
        "|".join(dialect.names) + ") exec " + " ".join(('"$@"', *dialect.options, _ASIDE)) + ";; "
        for dialect in DIALECTS
        if not dialect.interpreter
    )
    return fill(_BOOT.one_line, {"supervisors": "".join(branches), "interpreted": interpreted, "aside": _ASIDE})


@dataclass(frozen=True)
class Announcement:
    """A shell by the last part of its path, and its path; ``nudged`` if its input may still contain nudges.

    ``word`` is the value of CONNMGR_BOOT in its environment.
    """

    name: str
    path: str
    word: str
    nudged: bool


class _Output:
    """The end of a channel's output, which is searched for marks."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._looked = 0

    def line(self, mark: bytes) -> str | None:
        """Return the rest of the line that begins with ``mark``, or None until the line is complete."""
        lead = b"\n" + mark
        while (at := self._stdout.find(lead, self._looked)) >= 0:
            self._looked = at
            start = at + len(lead)
            end = self._stdout.find(b"\n", start, start + LINE_BYTES)
            if end >= 0:
                return self._stdout[start:end].decode(errors="replace")
            if len(self._stdout) - start < LINE_BYTES:
                return None
            self._looked = start
        self._looked = max(self._looked, len(self._stdout) - len(lead) + 1)
        return None

    def read(self, timeout: float) -> None:
        stdout, stderr = self._channel.recv(timeout)
        self._stdout += stdout
        self._stderr += stderr
        # Dropping a few bytes with every piece would copy the whole buffer each time.
        if len(self._stdout) > 2 * OUTPUT_BYTES:
            self._looked = max(0, self._looked - len(self._stdout) + OUTPUT_BYTES)
            del self._stdout[:-OUTPUT_BYTES]
        if len(self._stderr) > 2 * OUTPUT_BYTES:
            del self._stderr[:-OUTPUT_BYTES]

    def quoted(self) -> str:
        text = in_one_line((self._stdout + self._stderr).decode(errors="replace"))[:200]
        return f" It printed: {text}" if text else ""


def await_announcement(channel: Channel, nonce: str, boot: Sequence[str], deadline: Deadline) -> Announcement:
    """Return what the boot script announces after ``nonce``; ``boot`` is the channel's argv.

    :raises UnsupportedShell: the far side ended, or did not run the script by ``deadline``.
    """
    output, mark = _Output(channel), nonce.encode() + b" "
    nudges = [Deadline(seconds) for seconds in NUDGE_SECONDS]
    try:
        while (line := output.line(mark)) is None:
            if deadline.passed:
                reason = "the far side's shell runs no commands"
                raise UnsupportedShell(f"No session is possible: {reason}.{output.quoted()}")
            if nudges and nudges[0].passed:
                del nudges[0]
                channel.sendall(b"exec " + shlex.join(boot).encode() + b"\n", deadline.left())
            output.read(min(each.left() for each in (deadline, *nudges[:1])))
    except (EOFError, OSError):
        reason = "the far side's shell ended without running a command"
        raise UnsupportedShell(f"No session is possible: {reason}.{output.quoted()}") from None
    name, _, path = line.partition(" ")
    return Announcement(name, path, nonce, nudged=len(nudges) < len(NUDGE_SECONDS))


def await_reader(channel: Channel, deadline: Deadline) -> None:
    """Return when the supervisor has read all earlier input; drop its output until then.

    A nudge starts a new supervisor, and input that the previous one had read ahead is lost.
    """
    output, mark = _Output(channel), new_nonce().encode()
    while output.line(mark) is None and not deadline.passed:
        channel.sendall(b"echo >&8;echo " + mark + b" >&8\n", ECHO_SECONDS)
        output.read(deadline.within(ECHO_SECONDS).left())
