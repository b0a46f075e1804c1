"""The longest piece in which the interpreter stays with one thread, and so all others wait for it.

Only processor time counts: a wait is no longer than what another thread has computed meanwhile, and the time for which
the watching thread waited for a processor is no part of it, where Linux tells that. Elsewhere the shortest of several
tries is the one to look at.

``python -m tests.pieces FILE serve …`` runs a daemon that writes the longest piece to FILE while there is such a file,
and begins anew with the next one. It watches nothing otherwise, since watching takes the interpreter too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

PAUSE_SECONDS = 0.001
SWITCH_SECONDS = 0.0002
"""As in the daemon's process."""

TRIES = 3
WRITE_SECONDS = 0.05


class Pieces:
    """Watches the other threads of this process, from the thread that calls :meth:`look` again and again."""

    def __init__(self) -> None:
        self.longest = 0.0
        """The longest piece so far, in seconds."""

        self._own = threading.get_native_id()
        try:
            self._schedstat = os.open(f"/proc/self/task/{self._own}/schedstat", os.O_RDONLY)
        except OSError:
            self._schedstat = -1

    def close(self) -> None:
        """End the watch."""
        if self._schedstat >= 0:
            os.close(self._schedstat)

    def look(self) -> None:
        """Pause for a millisecond, and note how much longer it took to get the interpreter back."""
        before, queued, began = self._clocks(), self._queued(), time.monotonic()
        time.sleep(PAUSE_SECONDS)
        waited = time.monotonic() - began - PAUSE_SECONDS
        if waited > self.longest:
            waited -= self._queued() - queued
            computed = max((now - before.get(one, now) for one, now in self._clocks().items()), default=0.0)
            self.longest = max(self.longest, min(waited, computed))

    def _queued(self) -> float:
        """Return the seconds for which this thread has waited for a processor."""
        # In one call: what this thread waits for the interpreter afterwards must not count.
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9 if self._schedstat >= 0 else 0.0

    def _clocks(self) -> dict[int, float]:
        """Return the processor time of each other thread."""
        clocks = {}
        for thread in (int(task.name) for task in Path("/proc/self/task").iterdir()):
            if thread != self._own:
                # The result of pthread_getcpuclockid(3), which reads freed memory if the thread has ended meanwhile:
                # CPUCLOCK_SCHED of a thread.
                with suppress(OSError):
                    clocks[thread] = time.clock_gettime(~thread << 3 | 6)
        return clocks


def longest_piece(work: Callable[[], object]) -> float:
    """Return the longest piece, in seconds, in which ``work`` has the interpreter in a thread of its own."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return min(_longest(work) for _ in range(TRIES))
    finally:
        sys.setswitchinterval(interval)


def _longest(work: Callable[[], object]) -> float:
    watched, over = threading.Event(), threading.Event()

    def run() -> None:
        try:
            watched.wait()
            work()
        finally:
            over.set()

    thread = threading.Thread(target=run)
    with closing(Pieces()) as pieces:
        thread.start()
        while not over.is_set():
            pieces.look()
            # The thread is known from the first look on.
            watched.set()
        thread.join()
    return pieces.longest


def _report(file: Path) -> None:
    while True:
        with closing(Pieces()) as pieces:
            while file.exists():
                until = time.monotonic() + WRITE_SECONDS
                while time.monotonic() < until:
                    pieces.look()
                # Not by a new file: it may be gone by now.
                with suppress(FileNotFoundError), file.open("r+") as report:
                    report.write(f"{pieces.longest:.9f}")
        time.sleep(WRITE_SECONDS)


if __name__ == "__main__":
    from connmgr.__main__ import main

    threading.Thread(target=_report, args=(Path(sys.argv.pop(1)),), daemon=True).start()
    main()
