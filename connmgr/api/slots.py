"""The slots of requests that wait for a machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from connmgr.errors import Busy
from connmgr.shares import Shares, waiting

STOPS = 16
"""Extra slots for requests that stop something, so that a full daemon can still be freed."""


class RequestSlots:
    """Limits how many requests may wait for machines, so that others always find a free thread.

    A token may have five eighths of them, and all tokens together three quarters.
    """

    def __init__(self, count: int) -> None:
        one = max(1, count * 5 // 8)
        self._shares = Shares(one, max(one, count * 3 // 4))
        self._free = threading.BoundedSemaphore(count)
        self._stops = threading.BoundedSemaphore(STOPS)
        self._lock = threading.Lock()
        self.count = count
        self.in_use = 0

    @contextmanager
    def taken(self, holder: str | None = None, *, stops: bool = False) -> Iterator[None]:
        """Hold one slot for ``holder``. A request that ``stops`` something may also take one of :data:`STOPS` more.

        :raises Busy: all are taken, or the holder's share is; this does not wait.
        """
        if not self._take(holder):
            if not stops or not self._stops.acquire(blocking=False):
                raise Busy(self._reason(holder))
            try:
                with waiting():
                    yield
            finally:
                self._stops.release()
            return
        self._add(1)
        try:
            with waiting():
                yield
        finally:
            self._add(-1)
            self._shares.give_back(holder)
            self._free.release()

    def _take(self, holder: str | None) -> bool:
        if not self._shares.take(holder):
            return False
        if self._free.acquire(blocking=False):
            return True
        self._shares.give_back(holder)
        return False

    def _reason(self, holder: str | None) -> str:
        if holder and self._shares.is_exhausted(holder):
            return f"The token has its {self._shares.one} slots for requests that wait; try again later."
        return f"All {self.count} slots for requests that wait are taken; try again later."

    def _add(self, number: int) -> None:
        with self._lock:
            self.in_use += number
