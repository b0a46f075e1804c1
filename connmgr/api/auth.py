"""Who may talk to the daemon: credentials of the handshake, the tokens that it issues, and the callers behind them."""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from connmgr.errors import Busy, InvalidCredential, InvalidToken, NotAuthenticated
from connmgr.secrets.principals import Access

logger = logging.getLogger("connmgr.api")

MAX_CALLERS = 4096
FAILURES = 60
FAILURE_WINDOW = 60.0


@dataclass
class Caller:
    """One client session: who it says it is, and what it may open."""

    name: str
    access: Access
    last_used: float
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    """What the log and the audit trail call it."""


class Credentials:
    """Checks what a client presents at the handshake.

    A correct credential always passes, however many wrong ones came before it; wrong ones are answered
    :class:`Busy` once there were too many within a minute, so that guessing stays as slow as it is hopeless.
    """

    def __init__(self, auth_file_content: Callable[[], str], api_key: Callable[[], str | None]) -> None:
        self._read = {"local": auth_file_content, "apikey": api_key}
        self._lock = threading.Lock()
        self._failures = 0
        self._window_ends = 0.0

    def check(self, kind: str, credential: str) -> None:
        """Return if ``credential`` is the one of its ``kind``, ``local`` or ``apikey``.

        :raises InvalidCredential: it is not, or there is none.
        :raises Busy: it is not, and neither were many before.
        """
        expected = self._read[kind]()
        given = credential.strip().encode(errors="surrogatepass")
        if expected and hmac.compare_digest(expected.encode(), given):
            return
        self._count_failure()
        if kind == "local":
            raise InvalidCredential("The content of the auth file is wrong; it is new at every start of the daemon.")
        raise InvalidCredential("The API key is wrong; `connmgr api-key` prints it.")

    def _count_failure(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now > self._window_ends:
                self._failures, self._window_ends = 0, now + FAILURE_WINDOW
            self._failures += 1
            excess = self._failures - FAILURES
        if excess == 1:
            logger.warning("More than %d failed handshakes within a minute.", FAILURES)
        if excess > 0:
            raise Busy("Too many failed handshakes; try again later.")


class Tokens:
    """The bearer tokens that are valid now, kept as digests, with the caller behind each.

    ``ttl`` is the idleness in seconds after which a token expires, 0 for never. Beyond :data:`MAX_CALLERS` the one that
    was not used for longest makes room. Whoever leaves is locked out of all secrets at once.
    """

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._lock = threading.Lock()
        self._callers: OrderedDict[bytes, Caller] = OrderedDict()

    def issue(self, name: str) -> str:
        """Return a new token, of 256 random bits, for a client called ``name``."""
        token = secrets.token_urlsafe(32)
        leaving = []
        with self._lock:
            now = time.monotonic()
            self._callers[_digest(token)] = Caller(name, Access(), now)
            while self._callers:
                digest, oldest = next(iter(self._callers.items()))
                if len(self._callers) <= MAX_CALLERS and not self._expired(oldest, now):
                    break
                leaving.append(self._callers.pop(digest))
        for one in leaving:
            one.access.lock()
        return token

    def find(self, authorization: str) -> Caller:
        """Return the caller whose token the ``Authorization`` header of a request holds.

        :raises NotAuthenticated: it holds none.
        :raises InvalidToken: the token is not valid, or expired.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise NotAuthenticated("This endpoint needs the header Authorization: Bearer <token from /handshake>.")
        digest = _digest(token.strip())
        with self._lock:
            found = self._callers.get(digest)
            now = time.monotonic()
            expired = found is not None and self._expired(found, now)
            if expired:
                del self._callers[digest]
            elif found is not None:
                found.last_used = now
                self._callers.move_to_end(digest)
        if found is None or expired:
            if found is not None:
                found.access.lock()
            raise InvalidToken("The bearer token is not valid, or no longer; shake hands again.")
        return found

    def accepts(self, authorization: str) -> bool:
        """Whether an ``Authorization`` header holds a token that is valid, without counting as its use."""
        scheme, _, token = authorization.partition(" ")
        with self._lock:
            found = self._callers.get(_digest(token.strip()))
            return scheme.lower() == "bearer" and found is not None and not self._expired(found, time.monotonic())

    @property
    def number(self) -> int:
        """How many tokens were issued, and are not known to have expired."""
        return len(self._callers)

    def close(self) -> None:
        """Make every token invalid."""
        with self._lock:
            leaving = list(self._callers.values())
            self._callers.clear()
        for one in leaving:
            one.access.lock()

    def _expired(self, caller: Caller, now: float) -> bool:
        return bool(self._ttl) and now - caller.last_used > self._ttl


def _digest(token: str) -> bytes:
    # Looking a digest up tells nothing about how much of a guessed token is right.
    return sha256(token.encode(errors="surrogatepass")).digest()
