"""Computing: Python runs one thread at a time, so a thread says for whom it computes, and the owner's go first.

Threads of requests take turns (:class:`Computing`), and long work of a token gives way between its pieces
(:func:`give_way`). What stops the interpreter for long has a rest afterwards: :class:`Pace`, and in threads that serve
everybody :class:`Rests`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")

LONGEST_TURN_SECONDS = 1.0
OWNER_SECONDS = 0.02

PIECE_ITEMS = 16
"""Items of a list, each of which takes some microseconds, that are a piece of work."""

PIECES_SECONDS = 0.0004
"""Longest time of pieces of a token's work after each other; then its thread leaves the processor for a moment."""

OFF_SECONDS = 1e-6
"""What it sleeps then. Linux makes that some 60 us, its timers' slack: what waits there runs at once."""


@dataclass
class _Turn:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    free_at: float = 0.0


class Computing:
    """Has one thread compute for each token at a time, and none begin while one computes for the owner.

    Python runs one thread at a time, and whoever gives it up, as each request does at its calls to the system, waits
    for it behind all others that compute. A thread that waits for something else says so by :func:`waiting`. One that
    does not, and takes longer than ``longest`` seconds, does not keep its token's others waiting; nor does the owner
    who computes for longer than ``owner`` seconds. Strangers count as one token. Long work of a token calls
    :func:`give_way` between its pieces. Safe to use from several threads.
    """

    def __init__(self, longest: float = LONGEST_TURN_SECONDS, owner: float = OWNER_SECONDS) -> None:
        self._longest, self._owner = longest, owner
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._owners = self._behind = 0
        self._busy_times = 0
        self._turns: dict[str, _Turn] = {}

    @property
    def is_quiet(self) -> bool:
        """Whether nobody computes."""
        return not self._owners and not self._turns

    @property
    def serves_owner(self) -> bool:
        """Whether one computes for the owner."""
        return self._owners > 0

    def turn(self, holder: str | None) -> AbstractContextManager[None]:
        """Wait for the turn of ``holder``, and compute during the block; within another turn this does nothing."""
        return _Computation(self, holder) if getattr(_thread, "turn", None) is None else nullcontext()

    def begin(self, holder: str | None) -> bool:
        """Wait until ``holder`` may compute; return whether it has the turn, and did not wait for too long."""
        if holder is None:
            # This and its end are a part of each request of the owner's, so they do little.
            with self._lock:
                self._busy_times += not self._owners
                self._owners += 1
            return True
        with self._lock:
            turn = self._turns.setdefault(holder, _Turn())
            turn.users += 1
        has_turn = turn.lock.acquire(timeout=self._longest)
        # Also without the turn: a token whose other thread computes without an end still waits for the owner.
        self.give_way(0)
        return has_turn

    def give_way(self, outwaited: int) -> int:
        """Wait while one computes for the owner, unless that is the time for which ``outwaited`` stands.

        Return what stands for a time that lasts longer than ``owner`` seconds, or 0: who has waited that long once goes
        on beside it, since the owner may compute without an end.
        """
        # Read without the lock, which would cost each piece as much as the look; a stale answer costs one piece.
        if not self._owners or self._busy_times == outwaited:
            return outwaited
        with self._lock:
            self._behind += 1
            is_free = self._free.wait_for(lambda: not self._owners, self._owner)
            self._behind -= 1
            return 0 if is_free else self._busy_times

    def end(self, holder: str | None, *, has_turn: bool) -> None:
        """Note that a thread computes no more for ``holder``."""
        with self._lock:
            if holder is None:
                self._owners -= 1
                if self._behind and not self._owners:
                    self._free.notify_all()
                return
            turn = self._turns[holder]
            turn.users -= 1
            if not turn.users:
                del self._turns[holder]
        if has_turn:
            turn.lock.release()


class _Computation:
    """The turn of one thread, which it gives up while it waits."""

    __slots__ = ("_computing", "_has_turn", "_holder", "_on_since", "_outwaited")

    def __init__(self, computing: Computing, holder: str | None) -> None:
        self._computing, self._holder = computing, holder
        self._outwaited = 0

    def __enter__(self) -> None:
        self._has_turn = self._computing.begin(self._holder)
        self._on_since = time.monotonic()
        _thread.turn = self

    def __exit__(self, *_: object) -> None:
        _thread.turn = None
        self._computing.end(self._holder, has_turn=self._has_turn)

    @property
    def is_of_token(self) -> bool:
        return self._holder is not None

    def give_way(self) -> None:
        if self.is_of_token:
            self._outwaited = self._computing.give_way(self._outwaited)
            # The kernel lets a thread that never sleeps run for milliseconds, also where the owner's client, or another
            # program, has just been woken on its processor.
            if time.monotonic() - self._on_since > PIECES_SECONDS:
                time.sleep(OFF_SECONDS)
                self._on_since = time.monotonic()


_thread = threading.local()


def give_way() -> None:
    """Let the owner's requests pass, if this thread computes for a token: long work calls this between its pieces.

    A piece takes a millisecond at most. The owner's request takes the interpreter again after each call to the system,
    and each time would wait for a piece of whoever computes beside it.
    """
    computation = _own_computation()
    if computation is not None:
        computation.give_way()


def gives_way() -> bool:
    """Whether this thread computes for a token, and so lets others pass in :func:`give_way`."""
    computation = _own_computation()
    return computation is not None and computation.is_of_token


def _own_computation() -> _Computation | None:
    # Within `waiting` too: what comes from a machine is computed there, in many threads at once.
    return getattr(_thread, "turn", None) or getattr(_thread, "interrupted", None)


def in_pieces(items: Iterable[Item]) -> Iterator[Item]:
    """Yield ``items``, and let the owner's requests pass between some of them (:func:`give_way`)."""
    for number, item in enumerate(items):
        if not number % PIECE_ITEMS:
            give_way()
        yield item


def drained(items: list[Item]) -> Iterator[Item]:
    """Yield ``items`` as :func:`in_pieces`, and take each from the list: to free ten thousand at once is long work."""
    items.reverse()
    while items:
        if not len(items) % PIECE_ITEMS:
            give_way()
        yield items.pop()


@contextmanager
def waiting() -> Iterator[None]:
    """Let others compute during the block, in which this thread waits for something other than the processor."""
    computation: _Computation | None = getattr(_thread, "turn", None)
    if computation is None:
        yield
        return
    computation.__exit__()
    _thread.interrupted = computation
    try:
        yield
    finally:
        _thread.interrupted = None
        computation.__enter__()


REST = 10.0
LONGEST_REST_SECONDS = 4.0


class Pace:
    """Has each token do work that stops the interpreter one piece at a time, with a rest between two of them.

    The rest is some times the processor time of the piece before, at most ``longest`` seconds: whoever asks for little
    meanwhile meets few such pieces. The owner has no pace. Safe to use from several threads.
    """

    def __init__(self, longest: float = LONGEST_REST_SECONDS) -> None:
        self._longest = longest
        self._lock = threading.Lock()
        self._turns: dict[str, _Turn] = {}

    @contextmanager
    def turn(self, holder: str | None, rest: float = REST) -> Iterator[None]:
        """Wait for the turn of ``holder``, and have it during the block; afterwards rest ``rest`` times as long."""
        if holder is None:
            yield
            return
        with self._lock:
            turn = self._turns.setdefault(holder, _Turn())
            turn.users += 1
        try:
            with waiting():
                turn.lock.acquire()
                time.sleep(max(0.0, turn.free_at - time.monotonic()))
            try:
                # Processor time of this thread, not the clock: who was kept from the interpreter by others has not used
                # it.
                began = time.thread_time()
                try:
                    yield
                finally:
                    used = time.thread_time() - began
                    turn.free_at = time.monotonic() + min(self._longest, rest * used)
            finally:
                turn.lock.release()
        finally:
            with self._lock:
                turn.users -= 1
                now = time.monotonic()
                # A turn that somebody waits for, or whose rest is not over, stays: a new one in its place would skip
                # the rest.
                for name, each in list(self._turns.items()):
                    if not each.users and each.free_at <= now:
                        del self._turns[name]


AGAIN_SECONDS = 0.001
"""Interval at which a thread that serves everybody looks whether one still computes for the owner."""


class Rests:
    """The rests between pieces of a token's work in a thread that serves everybody, and so cannot wait itself.

    A rest is ``rest`` times the processor time of the piece, after the rests of all earlier pieces for that token; the
    owner has none. A piece does not begin while ``computing`` computes for the owner either, for ``owner`` seconds at
    most. Belongs to one thread.
    """

    def __init__(self, computing: Computing, rest: float = REST, owner: float = OWNER_SECONDS) -> None:
        self._computing, self._rest, self._owner = computing, rest, owner
        self._free_at: dict[str, float] = {}
        self._deferred_since: dict[str, float] = {}
        self._deferred_until = 0.0

    def before(self, holder: str | None) -> float:
        """Return the seconds after which to ask again before a piece of work for ``holder``; 0 if it may begin now."""
        if holder is None:
            return 0.0
        now = time.monotonic()
        if not self._computing.serves_owner or now - self._deferred_since.get(holder, now) > self._owner:
            self._deferred_since.pop(holder, None)
            return 0.0
        self._deferred_since.setdefault(holder, now)
        self._deferred_until = now + AGAIN_SECONDS
        return AGAIN_SECONDS

    def after(self, holder: str | None, used: float) -> float:
        """Return the seconds after which work for ``holder`` may go on, which has just ``used`` processor time."""
        if holder is None:
            return 0.0
        now = time.monotonic()
        self._free_at = {name: until for name, until in self._free_at.items() if until > now}
        # Of a client that left meanwhile nobody asks again.
        self._deferred_since = {
            name: since for name, since in self._deferred_since.items() if now - since <= self._owner
        }
        self._free_at[holder] = self._free_at.get(holder, now) + self._rest * used
        return self._free_at[holder] - now

    @property
    def are_due(self) -> bool:
        """Whether anybody rests, or is deferred."""
        now = time.monotonic()
        return self._deferred_until > now or any(until > now for until in self._free_at.values())


CROWD = 64
"""So many threads that may wait for the interpreter at a time are a crowd."""

CROWDED_SECONDS = 0.001
"""The time after which a crowd has a thread give up the interpreter."""


class Switching:
    """How soon a thread that computes gives up the interpreter to those that wait for it. Safe to use from all threads.

    Each thread that waits wakes once in that time. Where hundreds wait at once, as when the answers of hundreds of
    machines come, their waking takes the processor from those that could compute, and a longer time is better for all:
    a run on 500 machines is a tenth faster with 1 ms than with 0.2, and a request beside it is answered as soon.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._crowds = 0
        self._usual = 0.0

    @contextmanager
    def among(self, threads: int) -> Iterator[None]:
        """Use the longer time during the block, if so many ``threads`` are a crowd."""
        if threads < CROWD:
            yield
            return
        with self._lock:
            self._crowds += 1
            if self._crowds == 1:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(max(self._usual, CROWDED_SECONDS))
        try:
            yield
        finally:
            with self._lock:
                self._crowds -= 1
                if not self._crowds:
                    sys.setswitchinterval(self._usual)
