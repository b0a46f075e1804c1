"""Authentication: the credentials of the handshake, session tokens, tickets, and the callers behind them."""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from connmgr.durations import boot_time
from connmgr.errors import Busy, ConnmgrError, InvalidCredential, InvalidToken, NotAuthenticated, TokenRevoked
from connmgr.poller import Poller
from connmgr.rights.actions import Action
from connmgr.rights.grant import Grant
from connmgr.rights.scopes import ARGV, missing
from connmgr.rights.tokens import PREFIX, Grants, Live, access_of
from connmgr.secrets.loans import Loans
from connmgr.secrets.principals import Access

logger = logging.getLogger("connmgr.api")

MAX_CALLERS = 4096
MAX_SESSIONS = 64
"""Most simultaneous sessions of one token."""

SWEEP_SECONDS = 30.0
MAX_FAILURES = 60
FAILURE_WINDOW_SECONDS = 60.0

IDLE = "The page was idle for too long."

TICKET_SECONDS = 30.0
MAX_TICKETS = 1000
"""Most valid tickets; beyond that the oldest of whoever has the most is dropped."""


@dataclass
class Caller:
    """One client session: its own name, and the secrets that it may open."""

    name: str
    access: Access
    last_used: float
    running: int = 0
    """The number of its requests under way. A session is idle only at 0."""
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    """Its name in the log and the audit log."""

    live: Live | None = None
    """The token that it uses; None for the owner."""

    is_page: bool = False
    """Whether it is the session of a page in a browser, with which everything ends that waits or streams for it."""

    over: ConnmgrError | None = None
    """Why the session of a page has ended, and with it all that waits or streams for it; None while it has not."""

    stepped_up: float | None = None
    """The :func:`boot_time` at which the user of a page last showed who they are (:mod:`connmgr.api.step_up`)."""

    is_inventory: bool = False
    """Whether it is an inventory that is renewed: nobody looks at what it changes."""

    is_shared: bool = False
    """Whether it stands for all clients that use the token directly, without a handshake."""

    def __post_init__(self) -> None:
        who = {"client": self.name, "session": self.id}
        if self.live is not None:
            who |= {"token": self.live.grant.id, "tokenName": self.live.grant.name}
        self.access.who = who

    @property
    def grant(self) -> Grant | None:
        """Its rights; None for the owner, who may do everything."""
        return self.live.grant if self.live else None

    @property
    def token(self) -> str | None:
        """The id of its token; None for the owner."""
        return self.live.grant.id if self.live else None

    @property
    def holder(self) -> str | None:
        """Whose share of the daemon it uses (:mod:`connmgr.shares`): the first token of its lineage, or the owner."""
        return self.live.grant.lineage[-1].id if self.live else None

    def may(self, action: Action[Any]) -> bool:
        """Whether it has the scopes without which an action is refused whatever is sent."""
        if self.live is None:
            return True
        scopes = self.live.grant.scopes
        return missing(action.name, scopes) is None and not (action.runs and ARGV.isdisjoint(scopes))

    @property
    def ended(self) -> bool:
        """Whether its token has become invalid, or its page was left, so that its commands and streams end."""
        return self.over is not None or (self.live is not None and self.live.ended)

    @property
    def may_end(self) -> bool:
        """Whether what it runs may have to end before it is done."""
        return self.live is not None or self.is_page

    def note_use(self) -> None:
        """Note that the client does something now, such as typing at a terminal."""
        self.last_used = boot_time()

    @property
    def invalid(self) -> ConnmgrError | None:
        """Why its token has become invalid: :class:`TokenRevoked` or :class:`TokenExpired`; None while it is valid.

        For the session of a page that has ended, :class:`InvalidToken`.
        """
        if self.over is not None:
            return self.over
        if self.live is None or not self.live.ended:
            return None
        return self.live.why or TokenRevoked("The token was revoked.")

    def require_valid(self) -> None:
        """Raise what :attr:`invalid` returns, if anything."""
        if (why := self.invalid) is not None:
            raise why


class Credentials:
    """Checks the credentials of handshakes.

    A correct credential always passes. After too many wrong ones within a minute, others are answered :class:`Busy`.
    """

    def __init__(self, auth_file_content: Callable[[], str], api_key: Callable[[], str | None]) -> None:
        self._read = {"local": auth_file_content, "apikey": api_key}
        self._lock = threading.Lock()
        self._failures = 0
        self._window_ends = 0.0

    def check(self, kind: str, credential: str) -> None:
        """Check that ``credential`` is the right one of its ``kind``, ``local`` or ``apikey``.

        :raises InvalidCredential: it is wrong, or the daemon has no credential of this kind.
        :raises Busy: it is wrong, and so were too many before.
        """
        expected = self._read[kind]()
        secret = credential.strip().encode(errors="surrogatepass")
        # It takes as long for a text that is wrong in its first character as for one wrong in its last.
        if expected and hmac.compare_digest(expected.encode(), secret):
            return
        self._count_failure()
        if kind == "local":
            raise InvalidCredential(
                "Wrong content of the auth file: read the file again, each start of the daemon writes another."
            )
        if credential.strip().startswith(PREFIX):
            raise InvalidCredential("This is a token, not the API key: send it with the type token.")
        raise InvalidCredential("Unknown API key: `connmgr api-key` prints the daemon's.")

    def _count_failure(self) -> None:
        with self._lock:
            now = boot_time()
            if now > self._window_ends:
                self._failures, self._window_ends = 0, now + FAILURE_WINDOW_SECONDS
            self._failures += 1
            excess = self._failures - MAX_FAILURES
        if excess == 1:
            logger.warning("More than %d failed handshakes within a minute.", MAX_FAILURES)
        if excess > 0:
            raise Busy("Too many failed handshakes; try again later.")


class Scraper:
    """The caller with the static token that ``read`` returns; it may only read metrics, and owns no secret.

    ``read`` returns None if there is no such token.
    """

    def __init__(self, read: Callable[[], str | None]) -> None:
        self._read = read
        self._caller = Caller("metrics token", Access(), boot_time())

    def find(self, authorization: str) -> Caller | None:
        """Return the caller if the ``Authorization`` header of a request contains the token."""
        scheme, _, token = authorization.partition(" ")
        expected = self._read() if scheme.lower() == "bearer" else None
        secret = token.strip().encode(errors="surrogatepass")
        return self._caller if expected and hmac.compare_digest(expected.encode(), secret) else None


class Tokens:
    """The valid bearer tokens, stored as digests, with the caller of each.

    Handshakes create session tokens here; a token of ``grants`` is a bearer token too, and has one caller. A token
    expires after ``ttl`` seconds of idleness, that of a page after ``page_ttl`` too, and a caller's vault user is
    locked after ``unlock_ttl`` seconds; 0 means never. ``anonymous`` is the caller of requests without a token. Beyond
    :data:`MAX_CALLERS` the longest-idle caller of whoever has the most is removed. A removed caller is locked out of
    all secrets at once, and ``left`` is called with one that is a page's, and why it ends. After :meth:`watch`, idle
    callers are removed within :data:`SWEEP_SECONDS`.
    """

    def __init__(
        self,
        ttl: float,
        unlock_ttl: float = 0.0,
        anonymous: Caller | None = None,
        grants: Grants | None = None,
        loans: Loans | None = None,
        page_ttl: float = 0.0,
        left: Callable[[Caller, ConnmgrError], object] = lambda *_: None,
    ) -> None:
        self._grants = grants
        self._loans = loans or Loans()
        self._ttl, self._unlock_ttl = ttl, unlock_ttl
        self._page_ttl, self._left = page_ttl, left
        self._lock = threading.Lock()
        self._callers: OrderedDict[bytes, Caller] = OrderedDict()
        self._anonymous = [anonymous] if anonymous else []
        self._interval = min([SWEEP_SECONDS, *(each / 4 for each in (ttl, unlock_ttl, page_ttl) if each)])
        self._poller = Poller("idle-sessions", self._sweep, self._interval, logger)

    def watch(self) -> None:
        """Remove idle sessions regularly, until :meth:`close`."""
        if self._ttl or self._unlock_ttl or self._page_ttl:
            self._poller.begin()

    def issue(self, name: str, live: Live | None = None, *, is_page: bool = False) -> str:
        """Return a new token, of 256 random bits, for a client called ``name``; it may do no more than ``live``.

        That of a page in a browser expires after the seconds of idleness of pages, too.
        """
        token = secrets.token_urlsafe(32)
        self._keep(token, Caller(name, access_of(live, self._loans), boot_time(), live=live, is_page=is_page))
        return token

    def leave(self, caller: Caller) -> None:
        """End the session of ``caller``: its token becomes invalid, and it is locked out of all secrets."""
        with self._lock:
            for digest in [digest for digest, other in self._callers.items() if other is caller]:
                del self._callers[digest]
        # Without the lock: what ends with a page takes locks of its own.
        self._removed(caller, "The page was logged out.")

    def _removed(self, caller: Caller, why: str) -> None:
        """Lock a caller that was removed out of all secrets, and end what a page has left."""
        caller.access.lock()
        if caller.is_page:
            caller.over = InvalidToken(f"{why} Open it again with `connmgr web`.")
            self._left(caller, caller.over)

    def _keep(self, token: str, caller: Caller) -> Caller:
        leaving = []
        with self._lock:
            now = boot_time()
            current = self._callers.setdefault(_digest(token), caller)
            leaving += self._excess(current)
            while self._callers:
                # Each use moves its caller to the end, so the first one has been idle for the longest time.
                digest, oldest = next(iter(self._callers.items()))
                if not self._expired(oldest, now):
                    break
                leaving.append(self._callers.pop(digest))
            while len(self._callers) > MAX_CALLERS:
                holders = Counter(session.holder for session in self._callers.values())
                # Whoever has the most loses one, so that a token that opens many sessions displaces its own first.
                most = max(holders.values())
                idlest = next(digest for digest, session in self._callers.items() if holders[session.holder] == most)
                leaving.append(self._callers.pop(idlest))
        for session in leaving:
            self._removed(session, "Too many sessions were opened, or the page was idle for too long.")
        return current

    def _excess(self, newest: Caller) -> list[Caller]:
        """Remove the oldest session of a token that has too many, so that it displaces no other token's."""
        if newest.live is None:
            return []
        of_token = [digest for digest, session in self._callers.items() if session.live is newest.live]
        return [self._callers.pop(digest) for digest in of_token[:-MAX_SESSIONS]]

    def find(self, authorization: str) -> Caller:
        """Return the caller whose token is in the ``Authorization`` header of a request.

        :raises NotAuthenticated: there is none.
        :raises InvalidToken: the token is not valid, or expired.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise NotAuthenticated("This endpoint needs the header Authorization: Bearer <token from /handshake>.")
        digest = _digest(token.strip())
        with self._lock:
            caller = self._callers.get(digest)
            now = boot_time()
            expired = caller is not None and self._expired(caller, now)
            if expired:
                del self._callers[digest]
            elif caller is not None:
                self._use(caller, now)
                self._callers.move_to_end(digest)
        if caller is not None and not expired:
            return caller
        if caller is not None:
            self._removed(caller, IDLE)
        return self._caller_of(token.strip())

    def _caller_of(self, secret: str) -> Caller:
        if self._grants is None or not secret.startswith(PREFIX):
            raise InvalidToken(
                "Unknown session token: the session was idle for too long, or the daemon was started again. "
                "Begin a new one by /handshake; open a page by `connmgr web`."
            )
        live = self._grants.find(secret)
        return self._keep(
            secret, Caller(live.grant.name, access_of(live, self._loans), boot_time(), live=live, is_shared=True)
        )

    def begin(self, caller: Caller, address: str | None = None, *, counts: bool = True) -> None:
        """Note that a request of ``caller`` begins. Call :meth:`end` afterwards, even if this raises.

        A vault user that the caller has left unlocked for too long is locked first.
        :raises ConnmgrError: its token is invalid, may not be used from ``address``, or was used too often.
        """
        with self._lock:
            self._use(caller, boot_time())
            caller.running += 1
        if caller.live is not None and self._grants is not None:
            self._grants.in_use.begin(caller.live, address, counts=counts)

    def end(self, caller: Caller) -> None:
        """Note that a request of ``caller`` was answered."""
        with self._lock:
            caller.running -= 1
            caller.last_used = boot_time()
        if caller.live is not None and self._grants is not None:
            self._grants.in_use.end(caller.live)

    def _use(self, caller: Caller, now: float) -> None:
        if self._idle(caller, self._unlock_ttl, now):
            caller.access.lock()
        caller.last_used = now

    def sender_of(self, authorization: str) -> Caller | None:
        """Return the caller whose valid token is in an ``Authorization`` header, or None.

        This does not count as a use of the token.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        with self._lock:
            caller = self._callers.get(_digest(token.strip()))
            if caller is not None and not self._expired(caller, boot_time()):
                return caller
        try:
            caller = self._caller_of(token.strip())
        except ConnmgrError:
            return None
        return None if caller.ended else caller

    @property
    def number(self) -> int:
        """The number of issued tokens that are not known to have expired."""
        return len(self._callers)

    def close(self) -> None:
        """Make every token invalid, and end the thread."""
        self._poller.close(None)
        with self._lock:
            leaving = list(self._callers.values())
            self._callers.clear()
        for caller in leaving:
            caller.access.lock()

    def _expired(self, caller: Caller, now: float) -> bool:
        return self._idle(caller, self._ttl, now) or (caller.is_page and self._idle(caller, self._page_ttl, now))

    def _idle(self, caller: Caller, ttl: float, now: float) -> bool:
        return bool(ttl) and not caller.running and now - caller.last_used > ttl

    def _sweep(self) -> float:
        with self._lock:
            now = boot_time()
            expired = [(digest, caller) for digest, caller in self._callers.items() if self._expired(caller, now)]
            for digest, caller in expired:
                del self._callers[digest]
                caller.access.lock()
            for caller in (*self._callers.values(), *self._anonymous):
                if self._idle(caller, self._unlock_ttl, now):
                    caller.access.lock()
        for _, caller in expired:
            self._removed(caller, IDLE)
        return self._interval


class _Ticket(NamedTuple):
    subject: str
    caller: Caller
    expires: float
    request: Any = None


class Redeemed(NamedTuple):
    """What a ticket stood for: whoever asked for it, and the request that it was issued for."""

    caller: Caller
    request: Any


class Tickets:
    """The valid tickets, stored as digests. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: dict[bytes, _Ticket] = {}

    def issue(self, subject: str, caller: Caller, seconds: float = TICKET_SECONDS, request: Any = None) -> str:
        """Return a ticket that authenticates ``caller`` once, within ``seconds``, and only for ``subject``.

        With a ``request`` it is good for that request alone.
        """
        ticket = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._tickets = {digest: other for digest, other in self._tickets.items() if other.expires > now}
            while len(self._tickets) >= MAX_TICKETS:
                holders = Counter(other.caller.holder for other in self._tickets.values())
                # As with sessions: whoever has the most loses the oldest.
                most = max(holders.values())
                del self._tickets[
                    next(it for it, other in self._tickets.items() if holders[other.caller.holder] == most)
                ]
            self._tickets[_digest(ticket)] = _Ticket(subject, caller, now + seconds, request)
        return ticket

    def redeem(self, ticket: str, subject: str) -> Caller:
        """As :meth:`redeem_request`, for a ticket whose request is the one that it comes with."""
        return self.redeem_request(ticket, subject).caller

    def redeem_request(self, ticket: str, subject: str) -> Redeemed:
        """Return the caller whom ``ticket`` authenticates, and its request. The ticket is then used up.

        :raises InvalidToken: it was used, is too old, or is for something else.
        """
        with self._lock:
            entry = self._tickets.pop(_digest(ticket), None)
        if entry is None or entry.subject != subject or entry.expires <= self._clock():
            raise InvalidToken(
                "The ticket is not valid: it was used, has expired, or is for something else. Get a new one."
            )
        return Redeemed(entry.caller, entry.request)


def _digest(token: str) -> bytes:
    # Looking up a digest does not reveal by its time how much of a guessed token is right.
    return sha256(token.encode(errors="surrogatepass")).digest()
