"""A lock that is granted in the order of the requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class FairLock:
    """Admits one thread at a time in the order of the requests, so that queued commands run in their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[threading.Event] = deque()
        self._taken = False

    @contextmanager
    def take(self, timeout: float) -> Iterator[None]:
        """Hold the lock for the ``with`` block.

        :raises TimeoutError: it was not granted within ``timeout`` seconds.
        """
        self.acquire(timeout)
        try:
            yield
        finally:
            self.release()

    def acquire(self, timeout: float) -> None:
        """Hold the lock until :meth:`release`, or raise TimeoutError as :meth:`take` does."""
        granted = None
        with self._lock:
            if self._taken:
                granted = threading.Event()
                self._queue.append(granted)
            self._taken = True
        if granted is not None and not granted.wait(timeout):
            with self._lock:
                if not granted.is_set():
                    self._queue.remove(granted)
                    raise TimeoutError

    def release(self) -> None:
        """Pass the lock on to the thread that has waited longest."""
        with self._lock:
            if self._queue:
                self._queue.popleft().set()
            else:
                self._taken = False

    @property
    def taken(self) -> bool:
        """Whether a thread holds the lock."""
        return self._taken

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the lock."""
        return len(self._queue)
