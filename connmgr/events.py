"""What happens at the daemon, numbered and kept for a while, so that whoever was away can read on.

The rooms above publish, by a function that their constructors take; :class:`connmgr.api.listeners.Listeners` passes the
events on to clients.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

KEPT = 4096
"""Events that are kept; older ones are lost to a client that was away."""


MINUTES = 60
"""Minutes whose numbers of events are kept."""


class Happening(NamedTuple):
    """Something that happened at ``time``, in seconds since 1970; ``members`` are the further members of its message.

    ``token`` is the id of the token that started a job or terminal, None for the owner. ``facts`` tell who may know of
    it where the vault does not, as of something that was removed.
    """

    number: int
    time: float
    kind: str
    change: str
    connection: str | None
    id: str | None
    token: str | None
    facts: Any
    members: Mapping[str, Any]


class Publish(Protocol):
    """Makes known that something of a ``kind`` has changed; takes microseconds, and never waits or raises."""

    def __call__(
        self,
        kind: str,
        change: str,
        connection: str | None = None,
        id: str | None = None,
        *,
        token: str | None = None,
        facts: Any = None,
        **members: Any,
    ) -> None: ...


def unheard(
    kind: str,
    change: str,
    connection: str | None = None,
    id: str | None = None,
    *,
    token: str | None = None,
    facts: Any = None,
    **members: Any,
) -> None:
    """Do nothing: the :class:`Publish` of rooms whose events nobody reads."""


class Minutes:
    """How often things happened, in each minute of the last hour. Not safe to use from several threads."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Counter[str]]] = deque(maxlen=MINUTES)

    def count(self, what: str) -> None:
        """Note that something happened once more."""
        minute = int(time.time() // 60)
        # A clock that was set back counts in the minute where it was.
        if not self._kept or self._kept[-1][0] < minute:
            self._kept.append((minute, Counter()))
        self._kept[-1][1][what] += 1

    def numbers(self, whats: Sequence[str]) -> tuple[int, list[list[int]]]:
        """Return the first minute in seconds since 1970, and for each of ``whats`` its numbers from then to now."""
        first = int(time.time() // 60) - MINUTES + 1
        numbers = dict(self._kept)
        empty: Counter[str] = Counter()
        return first * 60, [[numbers.get(first + each, empty)[what] for each in range(MINUTES)] for what in whats]


class Events:
    """The latest events, the newest last, and how many there were lately. Safe to use from several threads.

    Their numbers begin with the microseconds since 1970, so they rise over restarts too, as long as fewer than a
    million events happen in a second. ``notify`` is called after each event while somebody ``listens``; it must be
    quick, and not raise.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Happening] = deque(maxlen=kept)
        self._minutes = Minutes()
        self._last = int(time.time() * 1_000_000)
        self.listens = False
        self.notify: Callable[[], object] = lambda: None

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._last

    def publish(
        self,
        kind: str,
        change: str,
        connection: str | None = None,
        id: str | None = None,
        *,
        token: str | None = None,
        facts: Any = None,
        **members: Any,
    ) -> None:
        """Add an event (:class:`Publish`)."""
        with self._lock:
            self._last += 1
            self._kept.append(Happening(self._last, time.time(), kind, change, connection, id, token, facts, members))
            self._minutes.count(f"{kind} {change}")
        if self.listens:
            self.notify()

    def count(self, what: str) -> None:
        """Count something that happened and is not an event."""
        with self._lock:
            self._minutes.count(what)

    def numbers(self, *whats: str) -> tuple[int, list[list[int]]]:
        """Return how often things happened in the minutes of the last hour (:meth:`Minutes.numbers`).

        An event is ``kind change``, such as ``link up``.
        """
        with self._lock:
            return self._minutes.numbers(whats)

    def number_at(self, moment: float) -> int:
        """Return the number after which to read what has happened since ``moment``, a time.time(), as far as kept."""
        with self._lock:
            recent = next(
                (count for count, event in enumerate(reversed(self._kept)) if event.time < moment), len(self._kept)
            )
            return self._last - recent

    def after(self, number: int) -> list[Happening] | None:
        """Return the events after the one with this number; None if some of them are lost, or it is unknown."""
        with self._lock:
            count = self._last - number
            if not 0 <= count <= len(self._kept):
                return None
            # From the newest on: a reader is mostly a few events behind.
            return list(islice(reversed(self._kept), count))[::-1]
