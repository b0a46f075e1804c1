"""Shares: how much of something one token may hold, and all tokens together, so that the owner always gets some."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

STRANGER = ""
"""The holder that stands for all clients that have not shown a valid token."""


class Shares:
    """Counts what each holder has of one kind of things. Safe to use from several threads.

    A holder is the id of a token; tokens made with it count as it, since otherwise it would get a further share with
    each. The owner is None. ``one`` token may hold that much, all tokens ``together`` that much, and all strangers
    together ``strangers``. The ``owner`` has no limit unless one is given.
    """

    def __init__(self, one: int, together: int, *, strangers: int = 0, owner: int | None = None) -> None:
        self.one, self.together = one, together
        self._strangers, self._owner = strangers, owner
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

    def held(self, holder: str | None) -> int:
        """Return how much ``holder`` has."""
        return self._held[holder]

    def is_exhausted(self, holder: str) -> bool:
        """Whether a token has its whole share, whatever the others have."""
        return self._held[holder] >= self.one

    def _allows(self, holder: str | None, size: int) -> bool:
        wanted = self._held[holder] + size
        if holder is None:
            return self._owner is None or wanted <= self._owner
        if holder == STRANGER:
            return wanted <= self._strangers
        return wanted <= self.one and self._of_tokens + size <= self.together


def of_tokens(count: int) -> tuple[int, int]:
    """Return how many of ``count`` things one token may have, and all tokens together: five eighths, three quarters."""
    one = max(1, count * 5 // 8)
    return one, max(one, count * 3 // 4)


def refused(count: int, holder: str | None, held: Iterable[str | None]) -> str | None:
    """Return why ``holder`` may have no more of ``count`` things, of which ``held`` are the holders, or None.

    The owner, None, may have all that are free.
    """
    if holder is None:
        return None
    one, together = of_tokens(count)
    tokens = [each for each in held if each is not None]
    if tokens.count(holder) >= one:
        return f"the token has {one} of them, its share"
    return f"tokens have {together} of them, their share" if len(tokens) >= together else None


REST = 10.0
LONGEST_REST_SECONDS = 2.0


@dataclass
class _Turn:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    free_at: float = 0.0


class Pace:
    """Has each token do work that stops the interpreter one piece at a time, with a rest between two of them.

    The rest is ``rest`` times the processor time of the piece before, at most ``longest`` seconds: whoever asks for
    little meanwhile meets few such pieces. The owner has no pace. Safe to use from several threads.
    """

    def __init__(self, rest: float = REST, longest: float = LONGEST_REST_SECONDS) -> None:
        self._rest, self._longest = rest, longest
        self._lock = threading.Lock()
        self._turns: dict[str, _Turn] = {}

    @contextmanager
    def turn(self, holder: str | None) -> Iterator[None]:
        """Wait for the turn of ``holder``, and have it during the block."""
        if holder is None:
            yield
            return
        with self._lock:
            turn = self._turns.setdefault(holder, _Turn())
            turn.users += 1
        try:
            with turn.lock:
                time.sleep(max(0.0, turn.free_at - time.monotonic()))
                began = time.thread_time()
                try:
                    yield
                finally:
                    used = time.thread_time() - began
                    turn.free_at = time.monotonic() + min(self._longest, self._rest * used)
        finally:
            with self._lock:
                turn.users -= 1
                now = time.monotonic()
                for name, one in list(self._turns.items()):
                    if not one.users and one.free_at <= now:
                        del self._turns[name]
