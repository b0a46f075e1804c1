"""A lock that is granted in the order in which it was asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class FairLock:
    """Lets one thread in at a time, first come, first served, so that queued commands run in the order they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[threading.Event] = deque()
        self._taken = False

    @contextmanager
    def take(self, timeout: float) -> Iterator[None]:
        """Hold the turn for the ``with`` block.

        :raises TimeoutError: it did not come within ``timeout`` seconds.
        """
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
        try:
            yield
        finally:
            self._pass_on()

    @property
    def taken(self) -> bool:
        """Whether a thread holds the turn now."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many threads wait for the turn now."""
        return len(self._queue)

    def _pass_on(self) -> None:
        with self._lock:
            if self._queue:
                self._queue.popleft().set()
            else:
                self._taken = False
