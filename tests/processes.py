"""Processes of this machine: whether they run, and what they hold."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from tests.deadlines import eventually_equal


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie has ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def await_ends(*pids: int) -> None:
    """Wait until all these processes have ended; a failure names those that run on."""

    def running() -> list[list[str]]:
        found = []
        for pid in pids:
            # It may end between the two looks.
            with suppress(psutil.NoSuchProcess):
                if runs(pid):
                    found.append(psutil.Process(pid).cmdline())
        return found

    eventually_equal(running, [], f"of the processes {pids} some run on")


def descriptors(pid: int | str = "self") -> Counter[str]:
    """Return the number of a process's descriptors of each kind: by path, or "socket", "pipe" and the like."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # The one that lists the directory is gone by now, and the process may close others.
        with suppress(FileNotFoundError):
            found[str(entry.readlink()).partition(":[")[0]] += 1
    return found


class Held:
    """The threads and descriptors that a daemon holds before a number of rounds."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._now()

    def _now(self) -> Counter[str]:
        return Counter({"thread": self._process.num_threads()}) + descriptors(self._process.pid)

    def await_release(self, rounds: int) -> None:
        """Wait until less than one of each kind is left for every second round.

        A few more are not a leak: on a busy machine the daemon answers with more threads than before, and each thread
        keeps connections to the vault.
        """

        def left() -> dict[str, int]:
            return {kind: count for kind, count in (self._now() - self._before).items() if 2 * count >= rounds}

        eventually_equal(left, {}, f"{rounds} rounds leave something behind")
