"""The slots of requests that wait for a machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from connmgr.errors import Busy

STOPS = 16
"""Extra slots for requests that stop something, so that a full daemon can still be freed."""


class RequestSlots:
    """Limits how many requests may wait for machines, so that others always find a free thread."""

    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)
        self._stops = threading.BoundedSemaphore(STOPS)
        self._lock = threading.Lock()
        self.count = count
        self.in_use = 0

    @contextmanager
    def taken(self, *, stops: bool = False) -> Iterator[None]:
        """Hold one slot. A request that ``stops`` something may also take one of the :data:`STOPS` extra slots.

        :raises Busy: all are taken; this does not wait.
        """
        if not self._free.acquire(blocking=False):
            if not stops or not self._stops.acquire(blocking=False):
                raise Busy(f"All {self.count} slots for requests that wait are taken; try again later.")
            try:
                yield
            finally:
                self._stops.release()
            return
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)
            self._free.release()

    def _add(self, number: int) -> None:
        with self._lock:
            self.in_use += number
