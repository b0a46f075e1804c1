"""Delays that grow with failed unlocks, per user and for all together."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from connmgr.errors import UnlockThrottled


@dataclass
class _Failures:
    count: int = 0
    last: float = 0.0
    until: float = 0.0


@dataclass(frozen=True)
class Delays:
    """After ``free`` failures the next attempt waits 1 s, then twice as long each time, up to ``longest`` seconds."""

    free: int
    longest: int

    def after(self, failures: int) -> float:
        """Return the seconds to wait after that many consecutive failures."""
        over = failures - self.free
        return 0.0 if over <= 0 else float(min(self.longest, 2 ** min(over - 1, 16)))


class Throttle:
    """Slows down the guessing of passphrases; safe to use from several threads.

    A refused attempt does not lengthen the delay, and every delay is limited, so that a user can unlock while another
    person guesses. Failures are forgotten after ``memory`` seconds without one. At most ``names`` are counted, whether
    they exist or not; the oldest is forgotten first.
    """

    def __init__(
        self,
        *,
        user: Delays = Delays(free=3, longest=60),
        overall: Delays = Delays(free=20, longest=10),
        memory: float = 900.0,
        names: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._user, self._overall, self._memory, self._names, self._clock = user, overall, memory, names, clock
        self._lock = threading.Lock()
        self._by_name: OrderedDict[str, _Failures] = OrderedDict()
        self._total = _Failures()

    def check(self, name: str) -> None:
        """Refuse an attempt on ``name`` that comes too early.

        :raises UnlockThrottled: ``retry_after`` holds the whole seconds to wait.
        """
        with self._lock:
            now = self._clock()
            entry = self._by_name.get(name)
            until = max(self._total.until, entry.until if entry else 0.0)
        if until > now:
            wait = math.ceil(until - now)
            raise UnlockThrottled(f"Too many failed unlocks; try again in {wait} s.", retry_after=wait)

    def failed(self, name: str) -> None:
        """Count a failed attempt on ``name``."""
        with self._lock:
            entry = self._by_name.pop(name, None) or _Failures()
            self._by_name[name] = entry
            self._count(entry, self._user)
            self._count(self._total, self._overall)
            while len(self._by_name) > self._names:
                self._by_name.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forget the failures on ``name``."""
        with self._lock:
            self._by_name.pop(name, None)

    def _count(self, entry: _Failures, delays: Delays) -> None:
        now = self._clock()
        if now - entry.last > self._memory:
            entry.count = 0
        entry.count += 1
        entry.last = now
        entry.until = now + delays.after(entry.count)
