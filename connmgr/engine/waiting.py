"""Whether silent work on a remote host waits for input: by its processes there, and by the end of what it printed.

Where the host has ``/proc``, a process that is blocked in reading from its terminal, or from a job's open input, is
seen without guessing. A process that cannot be looked into (such as ``sudo``), or that waits for several files at once,
counts only if its output ends in a line that looks like a prompt; so does all work on hosts without ``/proc``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from connmgr.engine.rpc import EXCHANGE, Exchange, Helpers, RemoteProgram
from connmgr.engine.script import Source
from connmgr.errors import TransferFailed
from connmgr.plugin import Deadline, Transport
from connmgr.printable import visible

SILENT_SECONDS = 1.0
"""Silence after which work is looked at, and the interval of further looks while it does not wait."""

AGAIN_SECONDS = 5.0
"""The interval of further looks at work that waits."""

TAIL_BYTES = 4096
LINES = 10
LINE_CHARACTERS = 300

ANSWER_BYTES = 1 << 20
MARKS_A_CALL = 200

LOOK = RemoteProgram(
    "wait_look",
    (EXCHANGE,),
    (Source(__package__, "waiting"),),
    Source(__package__, "waiting_places"),
)
"""``NAME=VALUE …``. ``ok``, then a line per process that waits: its mark, ``reads`` or ``may``, ``secret`` if so."""

_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|[\x00-\x08\x0b-\x1f\x7f]"
)
"""Escape sequences and control characters."""

_PROMPT = re.compile(r"[:?>\])$#%][ \t]{0,2}$")
_SECRET = re.compile(
    r"pass(?:word|phrase|code)|\bpin\b|\botp\b|one-time|verification code|token|secret|credential|private key",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Blocked:
    """What the processes of some work say: that one certainly reads, or only that it may; without a shown echo."""

    reads: bool
    is_secret: bool


@dataclass(frozen=True)
class WaitingWork:
    """Work that waits for input ``since`` then, as far as known, after it has printed ``lines``."""

    since: datetime
    lines: tuple[str, ...]
    is_secret: bool
    """Whether the answer must not be shown: the terminal does not show it, or the prompt names a secret."""

    is_certain: bool
    """Whether a blocked read was seen; otherwise the last line looks like a prompt."""


class Lull:
    """Decides when silent work is looked at. Not safe to use from several threads, but wrong by one look at most."""

    def __init__(self, activity: Hashable = None, since: float | None = None) -> None:
        self._activity = activity
        self._since = time.monotonic() if since is None else since
        self._looked = float("-inf")
        self.stirs = 0
        """How often the work has moved: what a look has found is out of date if it has moved meanwhile."""

    def note(self, activity: Hashable) -> bool:
        """Note how far the work has come; return whether it has not moved."""
        if activity == self._activity:
            return True
        self._activity = activity
        self.stir()
        return False

    def stir(self) -> None:
        """Note that the work moves now, such as by input."""
        self.stirs += 1
        self._since, self._looked = time.monotonic(), float("-inf")

    def is_due(self, *, waits: bool) -> bool:
        """Whether to look now; ``waits`` says how the last look ended."""
        now = time.monotonic()
        again = AGAIN_SECONDS if waits else SILENT_SECONDS
        return now - self._since >= SILENT_SECONDS and now - self._looked >= again

    def look(self) -> None:
        """Note that the work is looked at."""
        self._looked = time.monotonic()


def blocked(transport: Transport, helpers: Helpers, marks: Iterable[str], timeout: float) -> Mapping[str, Blocked]:
    """Return what the processes with each of ``marks`` (``NAME=VALUE``) in their environment say, if they may wait."""
    deadline, all_marks = Deadline(timeout), list(marks)
    by_mark: dict[str, Blocked] = {}
    for start in range(0, len(all_marks), MARKS_A_CALL):
        with Exchange(transport, helpers, LOOK, all_marks[start : start + MARKS_A_CALL]) as exchange:
            exchange.answer(deadline.left())
            printed = bytearray()
            for piece in exchange.data(deadline.left()):
                printed += piece
                if len(printed) > ANSWER_BYTES:
                    raise TransferFailed(f"The remote host sends more than {ANSWER_BYTES} bytes about its processes.")
        for line in printed.decode(errors="replace").splitlines():
            mark, _, words_of_it = line.partition(" ")
            words = words_of_it.split()
            before = by_mark.get(mark, Blocked(reads=False, is_secret=False))
            by_mark[mark] = Blocked(before.reads or "reads" in words, before.is_secret or "secret" in words)
    return by_mark


def waiting_work(
    process: Blocked | None, *printed: Sequence[str], before: WaitingWork | None = None
) -> WaitingWork | None:
    """Return what silent work waits for, if it waits, by its processes and by the last lines of its outputs.

    The last line of an output is the unfinished one, empty if there is none. ``before`` is what it was known to wait
    for, if it has not moved since.
    """
    if process is None:
        return None
    unfinished = [lines[-1] for lines in printed if lines and lines[-1].strip()]
    if not process.reads and not any(map(_PROMPT.search, unfinished)):
        return None
    # The output with an unfinished line comes last: that line is the prompt, and of long outputs only the end is shown.
    last = sorted((lines for lines in printed if any(lines)), key=lambda lines: bool(lines[-1].strip()))
    shown = tuple(line for lines in last for line in lines if line.strip())[-LINES:]
    is_secret = process.is_secret or any(map(_SECRET.search, unfinished))
    since = datetime.now(timezone.utc) if before is None else before.since
    return WaitingWork(since, shown, is_secret, process.reads)


def last_lines(tail: bytes) -> list[str]:
    """Return the lines at the end of an output, without control characters; the last one is unfinished."""
    text = tail.decode(errors="replace").replace("\r\n", "\n")
    # What is overwritten in a line is not shown any more.
    lines = (line.rpartition("\r")[2] for line in text.split("\n")[-LINES - 1 :])
    return [visible(_SEQUENCE.sub("", line)[-LINE_CHARACTERS:]) for line in lines]
