"""Passphrases of vault users: keys derived from them by Argon2id with limited cost, and delays against guessing."""

from __future__ import annotations

import math
import os
import struct
import sys
import threading
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from nacl.exceptions import RuntimeError as SodiumRuntimeError
from nacl.pwhash import argon2id

from connmgr.contract.vault import MAX_CHARACTERS, MIN_CHARACTERS
from connmgr.errors import Busy, IntegrityError, InvalidRequest, UnlockThrottled

SALT_BYTES = 16


@dataclass(frozen=True)
class Cost:
    """The cost of a derivation: ``opslimit`` passes over ``memlimit`` bytes."""

    opslimit: int
    memlimit: int

    def encode(self) -> bytes:
        """Return 16 bytes: both limits as little-endian signed 64-bit integers, which databases can store."""
        return struct.pack("<qq", self.opslimit, self.memlimit)


NO_COST = Cost(0, 0)
"""Marks the absence of a passphrase; nothing is derived with it."""

MODERATE = Cost(argon2id.OPSLIMIT_MODERATE, argon2id.MEMLIMIT_MODERATE)
"""The cost for new passphrases, and the lowest accepted: 3 passes over 256 MiB."""

CEILING = Cost(argon2id.OPSLIMIT_SENSITIVE, argon2id.MEMLIMIT_SENSITIVE)
"""The highest accepted: 4 passes over 1 GiB."""


def check_cost(cost: Cost, salt: bytes) -> None:
    """Refuse parameters that connmgr never writes, before allocating memory for them.

    :raises IntegrityError: cheaper than :data:`MODERATE`, costlier than :data:`CEILING`, or a salt of another length.
    """
    if (
        not MODERATE.opslimit <= cost.opslimit <= CEILING.opslimit
        or not MODERATE.memlimit <= cost.memlimit <= CEILING.memlimit
        or len(salt) != SALT_BYTES
    ):
        raise IntegrityError("The parameters stored for a user's passphrase were changed outside of connmgr.")


def new_salt() -> bytes:
    """Return a fresh salt, 16 bytes."""
    return os.urandom(SALT_BYTES)


def check_new_passphrase(passphrase: str) -> None:
    """Raise :class:`InvalidRequest` for a passphrase that is too short or too long."""
    if not MIN_CHARACTERS <= len(passphrase) <= MAX_CHARACTERS:
        raise InvalidRequest(f"A passphrase has {MIN_CHARACTERS} to {MAX_CHARACTERS} characters.")


TOKEN_PLACES = 3
"""Most derivations for tokens that wait or are under way."""

LOW_PRIORITY = 10
"""The nice value (setpriority(2)) of a derivation that may wait, which takes a processor for most of a second. A larger
value would make the owner's derivation behind it wait for long on a busy machine."""

_CROWDED = "Too many passphrases are being checked; try again in a moment."


class KeyDerivation:
    """Derives keys one at a time, so that unlocking cannot exhaust the machine's memory.

    At most ``queue`` threads wait, each for at most ``deadline`` seconds. Tokens have few of these places.
    """

    def __init__(self, *, deadline: float = 20.0, queue: int = 15) -> None:
        self._deadline = deadline
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(queue + 1)
        self._token_places = threading.BoundedSemaphore(TOKEN_PLACES)

    def derive(
        self, passphrase: str, salt: bytes, cost: Cost, *, of_token: bool = False, may_wait: bool = False
    ) -> bytes:
        """Return the 32-byte key of a passphrase (Argon2id 1.3 over its UTF-8 form in Unicode NFC).

        If it ``may_wait``, or is ``of_token``, other work of the machine goes first.

        :raises IntegrityError: as :func:`check_cost`.
        :raises UnlockThrottled: too many derivations are waiting.
        :raises Busy: the machine lacks the memory.
        """
        check_cost(cost, salt)
        # macOS types an "é" as two characters where Linux types one (Unicode's NFD and NFC).
        password = unicodedata.normalize("NFC", passphrase).encode()
        with ExitStack() as places:
            for semaphore in (self._token_places, self._places) if of_token else (self._places,):
                # Refused at once: whoever waits here holds a thread of the daemon, and a flood of guesses would hold
                # all of them.
                if not semaphore.acquire(blocking=False):
                    raise UnlockThrottled(_CROWDED)
                places.callback(semaphore.release)
            if not self._turn.acquire(timeout=self._deadline):
                raise UnlockThrottled(_CROWDED)
            places.callback(self._turn.release)
            kdf = partial(argon2id.kdf, 32, password, salt, cost.opslimit, cost.memlimit)
            try:
                return _at_low_priority(kdf) if of_token or may_wait else kdf()
            except (SodiumRuntimeError, MemoryError) as error:
                needed = cost.memlimit >> 20
                raise Busy(f"Checking a passphrase needs {needed} MiB of free memory; try again later.") from error


def _at_low_priority(work: Callable[[], bytes]) -> bytes:
    """Return the result of ``work`` from a thread of its own: an ordinary user cannot raise a priority again."""
    future: Future[bytes] = Future()

    def run() -> None:
        try:
            # On Linux a priority is a thread's; elsewhere it would be the whole process's.
            if sys.platform == "linux":
                own = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, own, max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, own)))
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            future.set_exception(error)

    threading.Thread(target=run, name="passphrase", daemon=True).start()
    return future.result()


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
    """Who tries a passphrase: a token together with its descendants, or one session of the owner's.

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

        :raises UnlockThrottled: the attempt is too early; ``retry_after`` is the number of whole seconds to wait.
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
            # One at a time: of many simultaneous attempts all would pass the check above before the first has failed.
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
        # Put back at the end, so that the first one is always the oldest.
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
