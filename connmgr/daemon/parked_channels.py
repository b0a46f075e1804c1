"""The channels whose requests wait without a thread, each with its deadline."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Protocol

from connmgr.api.parking import Parked


class Waiting(Protocol):
    """The part of a channel that this uses."""

    def resume(self, parked: Parked) -> None: ...


class ParkedChannels:
    """Resumes channels at their deadlines. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: list[tuple[float, int]] = []
        self._waiting: dict[int, tuple[Waiting, Parked]] = {}
        self._numbers = itertools.count()
        self._parks = True

    def park(self, channel: Waiting, parked: Parked) -> int:
        """Resume ``channel`` at the deadline of ``parked``; return its key, for :meth:`leave`."""
        with self._lock:
            place = next(self._numbers)
            self._waiting[place] = channel, parked
            heapq.heappush(self._due, (parked.until if self._parks else 0.0, place))
        return place

    def leave(self, place: int) -> None:
        """Forget the channel with the key ``place``. Calling it again does nothing."""
        with self._lock:
            self._waiting.pop(place, None)

    def resume_all(self) -> None:
        """Resume all channels at once, and later ones at the next :meth:`resume_due`."""
        with self._lock:
            self._parks = False
            waiting, self._waiting, self._due = self._waiting, {}, []
        for channel, parked in waiting.values():
            channel.resume(parked)

    def resume_due(self) -> float:
        """Resume the channels whose deadline has passed; return the seconds until the next one, infinite for none."""
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._due or self._due[0][0] > now:
                    return self._due[0][0] - now if self._due else float("inf")
                found = self._waiting.pop(heapq.heappop(self._due)[1], None)
            if found is not None:
                channel, parked = found
                channel.resume(parked)
