"""Shares: how much of something one token may hold or do at a time, so that the owner always gets some."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from connmgr.cancellation import NEVER, Cancellation
from connmgr.errors import Busy

STRANGER = ""
"""The holder that stands for all clients that have not shown a valid token."""


class Shares:
    """Counts what each holder has of one kind of things. Safe to use from several threads.

    A holder is the id of a token; tokens made with it count as it, since otherwise it would get a further share with
    each. The owner is None. ``one`` token may hold that much, all tokens ``together`` that much, and all strangers
    together ``strangers``. The ``owner`` has no limit unless one is given, or there is a ``whole``: then the owner may
    have what tokens leave of it.
    """

    def __init__(
        self, one: int, together: int, *, strangers: int = 0, owner: int | None = None, whole: int | None = None
    ) -> None:
        self.one, self.together = one, together
        self._strangers, self._owner, self._whole = strangers, owner, whole
        self._lock = threading.Lock()
        self._held: Counter[str | None] = Counter()
        self._of_tokens = 0

    def take(self, holder: str | None, size: int = 1) -> bool:
        """Count ``size`` more for ``holder``, if its limits allow that; return whether they do."""
        with self._lock:
            if not self._allows(holder, size):
                return False
            self._held[holder] += size
            self._of_tokens += size if holder else 0
        return True

    def give_back(self, holder: str | None, size: int = 1) -> None:
        """Count ``size`` less for ``holder``."""
        with self._lock:
            self._held[holder] -= size
            if not self._held[holder]:
                del self._held[holder]
            self._of_tokens -= size if holder else 0

    def has_room(self, holder: str | None, size: int = 1) -> bool:
        """Whether ``holder`` may take ``size`` more."""
        with self._lock:
            return self._allows(holder, size)

    def held(self, holder: str | None) -> int:
        """Return how much ``holder`` has."""
        return self._held[holder]

    def is_exhausted(self, holder: str) -> bool:
        """Whether a token has used up its own share, regardless of the shares of others."""
        return self._held[holder] >= self.one

    def _allows(self, holder: str | None, size: int) -> bool:
        total = self._held[holder] + size
        if self._whole is not None and self._held.total() + size > self._whole:
            return False
        if holder is None:
            return self._owner is None or total <= self._owner
        if holder == STRANGER:
            return total <= self._strangers
        return total <= self.one and self._of_tokens + size <= self.together


class MemoryShares(Shares):
    """Shares of memory, which is free again when nobody has what it holds (:class:`Held`)."""

    def __init__(self, one: int, together: int) -> None:
        super().__init__(one, together)
        self._freed: deque[tuple[str, int]] = deque()

    def take(self, holder: str | None, size: int = 1) -> bool:
        with suppress(IndexError):
            while True:
                self.give_back(*self._freed.popleft())
        return super().take(holder, size)

    def free(self, holder: str, size: int) -> None:
        """Have ``size`` given back before the next is taken; safe amid anything, as objects are freed."""
        # Python may free an object wherever it allocates one: also in `take`, with its lock held.
        self._freed.append((holder, size))


class Held:
    """The memory that one piece of work of ``holder`` has of ``shares``, for as long as anybody has this object."""

    def __init__(self, shares: MemoryShares, holder: str) -> None:
        self._shares, self._holder = shares, holder
        self._size = 0

    def take(self, size: int) -> bool:
        """Take ``size`` more, if the shares have it; return whether they do."""
        taken = self._shares.take(self._holder, size)
        self._size += size if taken else 0
        return taken

    def __del__(self) -> None:
        # Not by a call: an output goes from thread to thread, and whoever is to use it last may never come to it.
        if self._size:
            self._shares.free(self._holder, self._size)


def of_tokens(count: int) -> tuple[int, int]:
    """Return how many of ``count`` things one token may have, and all tokens together: five eighths, three quarters."""
    # With one greedy token three eighths are left for other tokens, and with any number of them a quarter for the
    # owner.
    of_one = max(1, count * 5 // 8)
    return of_one, max(of_one, count * 3 // 4)


def room(count: int, holder: str | None, used: Iterable[tuple[str | None, int]]) -> int:
    """Return how much more of ``count`` the share of ``holder`` leaves; ``used`` has holders, each with what it has.

    The owner, None, may have all that is free.
    """
    by_holder: Counter[str | None] = Counter()
    for each, size in used:
        by_holder[each] += size
    free = count - by_holder.total()
    if holder is None:
        return free
    of_one, together = of_tokens(count)
    return min(free, of_one - by_holder[holder], together - (by_holder.total() - by_holder[None]))


def refused(count: int, holder: str | None, held: Iterable[str | None]) -> str | None:
    """Return why ``holder`` may have no more of ``count`` things, whose holders now are ``held``; None if it may.

    The owner, None, may have all that are free.
    """
    if holder is None:
        return None
    of_one, together = of_tokens(count)
    tokens = [each for each in held if each is not None]
    if tokens.count(holder) >= of_one:
        return f"the token has {of_one} of them, its share"
    return f"tokens have {together} of them, their share" if len(tokens) >= together else None


OUTPUT_BYTES = 256 * 1024 * 1024
"""Most bytes of the outputs of a token's commands that are in memory at a time."""

SCANS = 2
"""How many programs that read whole files, for checksums and searches, a token may have at a time on a connection."""

SCAN_SECONDS = 600.0
"""Longest wait for such a program's turn."""

SCANNING = f"{SCANS} searches and checksums of the token run there; try again later."


class Queues:
    """Has one token do ``count`` pieces of work at a time at one place, such as a connection, and the next ones after.

    Whoever waits in vain for ``longest`` seconds is told ``busy``. The owner never waits. Safe to use from several
    threads.
    """

    def __init__(self, count: int, longest: float, busy: str) -> None:
        self._count, self._longest, self._busy = count, longest, busy
        self._changed = threading.Condition()
        self._under_way: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def turn(self, holder: str | None, place: str, cancellation: Cancellation = NEVER) -> Iterator[None]:
        """Wait for the turn of ``holder`` at ``place``, and have it during the block.

        :raises Busy: it did not come within ``longest`` seconds.
        :raises connmgr.errors.CommandCancelled: nobody wants the work any more.
        """
        if holder is None:
            yield
            return
        key = holder, place
        with cancellation.waking(self._wake), self._changed:
            may_begin = self._changed.wait_for(
                lambda: self._under_way[key] < self._count or cancellation.cancelled, self._longest
            )
            cancellation.require()
            if not may_begin:
                raise Busy(self._busy)
            self._under_way[key] += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way[key] -= 1
                if not self._under_way[key]:
                    del self._under_way[key]
                self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
