"""The facts of a request, collected while it is answered: for the log, the audit log and the counts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import flask

from connmgr.api.auth import Caller
from connmgr.api.parking import TURNS, Turns
from connmgr.cancellation import NEVER, Cancellation
from connmgr.plugin import Transport
from connmgr.rights.ground import Ground
from connmgr.secrets.loans import Loan, loan_over

Piece = TypeVar("Piece")

CANCELLATION = "connmgr.cancellation"
"""The key in the WSGI environment for the :class:`Cancellation` of a request, by its client's leaving."""

PEER_UID = "connmgr.peer_uid"
"""The key in the WSGI environment for the user at the other end of the Unix socket, if the request came by it."""


@dataclass
class Account:
    """One request: ``about`` names its subjects, ``details`` has names and numbers of its outcome.

    Neither contains the request's payload: no secret, no file content, no output.
    """

    id: str
    began: float
    environ: dict[str, Any]
    """The request itself, as a WSGI environment."""

    turns: Turns
    action: str | None = None
    audited: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    recorded: list[str] | None = None
    """The argv for the audit log, if the words that run have secrets that are known as such."""

    details: dict[str, Any] = field(default_factory=dict)
    authority: dict[str, Any] = field(default_factory=dict)
    """What allowed or refused it: ``token`` and ``tokenName``, ``rule``, ``approval``; empty for the owner."""

    grounds: Mapping[str, Ground] = field(default_factory=dict)
    """On what the request was approved, by connections; empty where it needed no approval."""

    requested: Any = None
    """The approved request as it was, before a rule put another command in its place."""

    elevation: Any = None
    """The elevation that a request about several connections asks for, until they are found."""

    selection: Any = None
    """What a view's ``selects`` has found beside the request."""

    parts: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Its effects on single connections and categories, with details; each gets its own entry in the audit log."""

    begun: int | None = None
    """The number of the audit log's entry about its beginning."""

    held: ExitStack = field(default_factory=ExitStack)
    """Context managers to close when the answer is sent."""

    loan: Loan | None = None
    """The loan of secrets by which it has used a connection."""

    client: str | None = None
    caller: Caller | None = None
    code: str | None = None

    @property
    def holder(self) -> str | None:
        """Whose share of the daemon it uses (:mod:`connmgr.shares`)."""
        return self.caller.holder if self.caller else None


def begin() -> Account:
    """Open the account of a request, and return it."""
    # Each use of Flask's request costs three calls.
    environ = flask.request.environ
    turns = environ.get(TURNS) or Turns(resumes=False)
    # The id is no secret, and random bytes from the system would cost a switch of threads.
    known = flask.g.account = Account(f"{random.getrandbits(32):08x}", time.perf_counter(), environ, turns)
    return known


def account() -> Account:
    """Return the account of the request that is being answered."""
    found: Account = flask.g.account
    return found


def holder() -> str | None:
    """Return whose share of the daemon is used here; None, as for the owner, outside of requests."""
    return account().holder if flask.has_request_context() else None


def turns() -> Turns:
    """Return the turns of the request that is being answered."""
    return account().turns


def detail(**details: Any) -> None:
    """Add to the details of this request."""
    account().details.update(details)


def note_forwarding(transport: Transport) -> None:
    """Add to the details of this request that what it runs may use a forwarded ssh-agent, if so."""
    if transport.forwards_agent:
        detail(agentForwarded=True)


def ground_of(connection: str) -> Ground | None:
    """Return the ground on which this request was approved for ``connection``; None if it needed no approval."""
    return account().grounds.get(connection)


def part(what: dict[str, str], **details: Any) -> None:
    """Record ``details`` of the request's effect on one ``connection`` or ``category``."""
    account().parts.append((what, details))


def caller() -> Caller:
    """Return the sender of this request, to an endpoint that is not public."""
    found = account().caller
    assert found is not None, "a public endpoint has no caller"  # noqa: S101 - a fault of the endpoint's declaration
    return found


class _WhileValid(Cancellation):
    """The end of a client's interest, or of the validity of its token or loan, which nobody is woken for."""

    def __init__(self, client: Cancellation, asking: Caller, known: Account) -> None:
        super().__init__()
        self._client = client
        self._asking = asking
        self._known = known

    @property
    def cancelled(self) -> bool:
        loan_over = self._known.loan is not None and self._known.loan.over is not None
        return loan_over or self._asking.ended or self._client.cancelled

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        with self._client.waking(wake):
            yield


def cancellation() -> Cancellation:
    """Return the end of this request: its client leaves, or its token becomes invalid."""
    client: Cancellation = account().environ.get(CANCELLATION, NEVER)
    asking = caller()
    return client if asking.live is None else _WhileValid(client, asking, account())


def require_client() -> None:
    """Raise :class:`connmgr.errors.CommandCancelled` if the client of this request has left."""
    client: Cancellation = account().environ.get(CANCELLATION, NEVER)
    client.require()


def require_valid() -> None:
    """Raise :class:`TokenRevoked` or :class:`TokenExpired` if the caller's token became invalid since then."""
    caller().require_valid()


def note_loan(loan: Loan, connection: str) -> bool:
    """Note that the request that is being answered uses ``connection`` by a loan; return False outside of requests."""
    if not flask.has_request_context():
        return False
    known = account()
    known.loan = loan
    lent = known.details.setdefault("lent", {"user": loan.principal.name, "session": loan.session, "connections": []})
    if connection not in lent["connections"]:
        lent["connections"].append(connection)
    return True


def while_valid(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield ``pieces`` of a transfer for this request; raise the error of the caller's token if it becomes invalid."""
    asking = caller()
    return iter(pieces) if asking.live is None else _until_ended(pieces, asking, account())


def _until_ended(pieces: Iterable[Piece], asking: Caller, known: Account) -> Iterator[Piece]:
    for piece in pieces:
        asking.require_valid()
        require_loan(known)
        yield piece


def require_loan(known: Account) -> None:
    """Raise :class:`connmgr.errors.SecretLocked` if a loan by which the request ``known`` runs is over."""
    if known.loan is not None and (why := known.loan.over) is not None:
        raise loan_over(known.loan, why)
