"""What happens at the daemon, numbered and kept for a while, so that whoever was away can read on.

The rooms above publish, by a function that their constructors take; :class:`connmgr.api.listeners.Listeners` passes the
events on to clients.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol

KEPT = 4096
"""Events that are kept; older ones are lost to a client that was away."""


class Happening(NamedTuple):
    """Something that happened at ``time``, in seconds since 1970; ``members`` are those of its message beside these.

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


class Events:
    """The latest events, the newest last. Safe to use from several threads.

    Their numbers begin with the microseconds since 1970, so they rise over restarts too, as long as fewer than a
    million events happen in a second. ``notify`` is called after each event while somebody ``listens``; it must be
    quick, and not raise.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Happening] = deque(maxlen=kept)
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
        if self.listens:
            self.notify()

    def after(self, number: int) -> list[Happening] | None:
        """Return the events after the one with this number; None if some of them are lost, or it is unknown."""
        with self._lock:
            count = self._last - number
            if not 0 <= count <= len(self._kept):
                return None
            # From the newest on: a reader is mostly a few events behind.
            return list(islice(reversed(self._kept), count))[::-1]
