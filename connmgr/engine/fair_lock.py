"""A lock that is granted in the order of the requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from connmgr.cancellation import NEVER, Cancellation


class _Waiter:
    """A thread that waits; it is ``woken`` when the lock is ``granted`` to it, or its work is cancelled."""

    __slots__ = ("granted", "woken")

    def __init__(self) -> None:
        self.granted = False
        self.woken = threading.Event()


class FairLock:
    """Admits one thread at a time in the order of the requests, so that queued commands run in their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._taken = False

    @contextmanager
    def take(self, timeout: float, cancellation: Cancellation = NEVER) -> Iterator[None]:
        """Hold the lock for the ``with`` block; raises as :meth:`acquire` does."""
        self.acquire(timeout, cancellation)
        try:
            yield
        finally:
            self.release()

    def acquire(self, timeout: float, cancellation: Cancellation = NEVER) -> None:
        """Hold the lock until :meth:`release`.

        :raises TimeoutError: it was not granted within ``timeout`` seconds.
        :raises connmgr.errors.CommandCancelled: the work was cancelled first; the thread left the queue at once.
        """
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            waiter = _Waiter()
            self._queue.append(waiter)
        with cancellation.waking(waiter.woken.set):
            waiter.woken.wait(timeout)
        with self._lock:
            if waiter.granted:
                return
            self._queue.remove(waiter)
        cancellation.require()
        raise TimeoutError

    def release(self) -> None:
        """Pass the lock on to the thread that has waited longest."""
        with self._lock:
            if not self._queue:
                self._taken = False
                return
            waiter = self._queue.popleft()
            waiter.granted = True
        waiter.woken.set()

    @property
    def taken(self) -> bool:
        """Whether a thread holds the lock."""
        return self._taken

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the lock."""
        return len(self._queue)
