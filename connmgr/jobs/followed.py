"""The last known state of a job, and the waiters for its news."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from connmgr.errors import Busy
from connmgr.jobs.spool import Seen
from connmgr.vault.jobs import ENDED, StoredJob

READ_SECONDS = 30.0
"""Longest wait of a request for another request that reads the same job."""


@dataclass(frozen=True)
class Output:
    """The output of a job from two offsets on, in bytes, and the job's state at that time.

    ``directory`` is where its command ended, b"" if the job does not record it, and None if it was not read.
    """

    seen: Seen | None
    stale: bool
    version: int
    stdout_offset: int = 0
    stdout: bytes = b""
    stderr_offset: int = 0
    stderr: bytes = b""
    directory: bytes | None = None


class Followed:
    """The known state of one job. Safe to use from several threads."""

    def __init__(self, stored: StoredJob) -> None:
        self.stored = stored
        self.begun = False
        """Whether this daemon has started it on the far side."""
        self._used = time.monotonic()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._numbers = 0
        self._seen_at = float("-inf")
        self._last = Output(None, stale=False, version=0)

    @property
    def last(self) -> Output:
        """The output that was read last."""
        return self._last

    def use(self, stored: StoredJob) -> None:
        """Store the job's current row."""
        self.stored, self._used = stored, time.monotonic()

    def is_current(self, seconds: float) -> bool:
        """Whether the row was read within ``seconds``."""
        return time.monotonic() - self._used < seconds

    def is_used(self, seconds: float) -> bool:
        """Whether a caller waits for the job, or has asked for it within ``seconds``."""
        return self.waiting or self.is_current(seconds)

    def is_fresh(self, seconds: float) -> bool:
        """Whether the far side was seen within ``seconds``."""
        return time.monotonic() - self._seen_at < seconds

    def outdate(self) -> None:
        """Make the next request ask the far side."""
        self._seen_at = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the job has ended, and its output is complete."""
        seen = self._last.seen
        return self.stored.state in ENDED and (seen is None or (seen.stdout.ended and seen.stderr.ended))

    @property
    def waiting(self) -> bool:
        """Whether a client waits for news."""
        return bool(self._waiting)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Be the only reader of the far side; the result serves all callers that ask for the same meanwhile.

        :raises Busy: other readers take too long.
        """
        if not self._reading.acquire(timeout=READ_SECONDS):
            raise Busy("The far side is slow to answer other requests for this job; try again.")
        try:
            yield
        finally:
            self._reading.release()

    def known(self, stdout_offset: int, stderr_offset: int, fresh_seconds: float) -> Output | None:
        """Return the known output from these offsets on, or None if the far side must be asked."""
        last = self._last
        if last.seen is None or not self.is_fresh(fresh_seconds):
            return None
        if last.seen.state == "exited" and last.directory is None:
            return None
        if (stdout_offset, stderr_offset) == (last.stdout_offset, last.stderr_offset) and (last.stdout or last.stderr):
            return last
        if (stdout_offset, stderr_offset) == (last.seen.stdout.size, last.seen.stderr.size):
            return replace(last, stdout_offset=stdout_offset, stdout=b"", stderr_offset=stderr_offset, stderr=b"")
        return None

    def publish(
        self,
        seen: Seen,
        stdout_offset: int = 0,
        stdout: bytes = b"",
        stderr_offset: int = 0,
        stderr: bytes = b"",
        directory: bytes | None = None,
    ) -> Output:
        """Store the seen state of the job, and notify the waiters if it is news."""
        with self._lock:
            before = self._last
            version = before.version + (seen != before.seen or before.stale)
            now = Output(seen, False, version, stdout_offset, stdout, stderr_offset, stderr, directory)
            if stdout or stderr or version != before.version:
                # Otherwise the earlier output still serves other callers.
                self._last = now
            self._seen_at = time.monotonic()
            told = self._take_waiting() if version != before.version else []
        for callback in told:
            callback()
        return now

    def unreachable(self, stdout_offset: int = 0, stderr_offset: int = 0) -> Output:
        """Mark the known state as stale, because the far side is unreachable; return its output from these offsets."""
        with self._lock:
            last = self._last = replace(self._last, stale=True, version=self._last.version + (not self._last.stale))
        if (stdout_offset, stderr_offset) == (last.stdout_offset, last.stderr_offset):
            return last
        return Output(last.seen, True, last.version, stdout_offset, b"", stderr_offset, b"")

    def subscribe(self, version: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once when ``version`` is outdated; return a function that cancels that."""
        with self._lock:
            if self._last.version == version:
                self._numbers += 1
                number = self._numbers
                self._waiting[number] = callback
                return lambda: self._forget(number)
        callback()
        return lambda: None

    def tell_all(self) -> None:
        """Call all waiters."""
        with self._lock:
            told = self._take_waiting()
        for callback in told:
            callback()

    def _take_waiting(self) -> list[Callable[[], None]]:
        told, self._waiting = list(self._waiting.values()), {}
        return told

    def _forget(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)
