"""Tickets: one-time tokens for clients that cannot send a header with a WebSocket, such as browsers."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from connmgr.api.auth import Caller
from connmgr.errors import InvalidToken

TICKET_SECONDS = 30.0
MAX_TICKETS = 1000
"""Most valid tickets; beyond that the oldest of whoever has the most is dropped."""


class _Ticket(NamedTuple):
    subject: str
    caller: Caller
    expires: float


class Tickets:
    """The valid tickets, stored as digests. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: dict[bytes, _Ticket] = {}

    def issue(self, subject: str, caller: Caller) -> str:
        """Return a ticket that authenticates ``caller`` once, within 30 s, and only for ``subject``."""
        ticket = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._tickets = {digest: one for digest, one in self._tickets.items() if one.expires > now}
            while len(self._tickets) >= MAX_TICKETS:
                holders = Counter(one.caller.holder for one in self._tickets.values())
                most = max(holders.values())
                del self._tickets[next(it for it, one in self._tickets.items() if holders[one.caller.holder] == most)]
            self._tickets[_digest(ticket)] = _Ticket(subject, caller, now + TICKET_SECONDS)
        return ticket

    def redeem(self, ticket: str, subject: str) -> Caller:
        """Return the caller whom ``ticket`` authenticates. The ticket is then used up.

        :raises InvalidToken: it was used, is older than 30 s, or is for something else.
        """
        with self._lock:
            found = self._tickets.pop(_digest(ticket), None)
        if found is None or found.subject != subject or found.expires <= self._clock():
            raise InvalidToken(
                "The ticket is not valid: a ticket can be used once, within 30 seconds, for one terminal. Get a new "
                "one."
            )
        return found.caller


def _digest(ticket: str) -> bytes:
    # Looking up a digest does not reveal by its time how much of a guessed ticket is right.
    return sha256(ticket.encode(errors="surrogatepass")).digest()
