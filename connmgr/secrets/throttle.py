"""Delays that grow with the failed unlocks of one guesser, per user and for all users together."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Guesser:
    """Who tries a passphrase: a token, with those made with it, or one session of the owner's.

    Several people may have sessions of the owner's behind one ``origin``: an address, or a user of this machine at the
    Unix socket.
    """

    token: str | None = None
    origin: str = ""
    session: str = ""


class Throttle:
    """Slows down the guessing of passphrases; safe to use from several threads.

    Each guesser has delays of its own, for one name and for all names together, so that nobody keeps the right person
    from unlocking by guessing wrong. A guesser tries one passphrase at a time. A refused attempt does not lengthen the
    delay, and every delay is limited. Failures are forgotten after ``memory`` seconds without one. At most ``names``
    are counted, whether they exist or not, and as many guessers; the oldest is forgotten first.
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
        self._by_name: OrderedDict[tuple[Guesser, str], _Failures] = OrderedDict()
        self._by_guesser: OrderedDict[Guesser, _Failures] = OrderedDict()
        self._trying: set[Guesser] = set()

    @contextmanager
    def attempt(self, name: str, guesser: Guesser) -> Iterator[bool]:
        """Note an attempt of ``guesser`` on ``name`` during the block; yield whether it has failed before.

        :raises UnlockThrottled: it comes too early: ``retry_after`` holds the whole seconds to wait.
        """
        with self._lock:
            now = self._clock()
            counted = self._by_name.get((guesser, name)), self._by_guesser.get(guesser)
            until = max((entry.until for entry in counted if entry), default=0.0)
            if until > now:
                wait = math.ceil(until - now)
                raise UnlockThrottled(f"Too many failed unlocks; try again in {wait} s.", retry_after=wait)
            if guesser in self._trying:
                raise UnlockThrottled("Another passphrase of yours is being checked; try again in a moment.")
            # Otherwise many simultaneous attempts would all come before the first failure.
            self._trying.add(guesser)
        try:
            yield any(counted)
        finally:
            with self._lock:
                self._trying.discard(guesser)

    def failed(self, name: str, guesser: Guesser) -> None:
        """Count a failed attempt of ``guesser`` on ``name``."""
        with self._lock:
            self._count(self._by_name, (guesser, name), self._user)
            self._count(self._by_guesser, guesser, self._overall)

    def succeeded(self, name: str, guesser: Guesser) -> None:
        """Forget the failures of ``guesser`` on ``name``."""
        with self._lock:
            self._by_name.pop((guesser, name), None)

    def _count(self, counted: OrderedDict[Any, _Failures], key: object, delays: Delays) -> None:
        entry = counted.pop(key, None) or _Failures()
        counted[key] = entry
        now = self._clock()
        if now - entry.last > self._memory:
            entry.count = 0
        entry.count += 1
        entry.last = now
        entry.until = now + delays.after(entry.count)
        while len(counted) > self._names:
            counted.popitem(last=False)
