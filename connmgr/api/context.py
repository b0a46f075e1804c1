"""The context of the request that is being answered: what the server passed with it, and the facts for the logs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import flask

from connmgr.api.auth import Caller
from connmgr.api.body import REFUSAL, Refusal
from connmgr.cancellation import NEVER, Cancellation
from connmgr.errors import ConnmgrError, TokenExpired
from connmgr.plugin import Transport
from connmgr.rights.ground import Ground
from connmgr.secrets.loans import Loan, loan_over
from connmgr.suspension import Continuation
from connmgr.vault.runs import StoredRun
from connmgr.vault.schedules import StoredSchedule

Piece = TypeVar("Piece")

# The keys in the WSGI environment by which the server passes what belongs to a request and is not HTTP.
CONTINUATION = "connmgr.continuation"
"""The :class:`Continuation` of the request, if the server resumes it."""

CANCELLATION = "connmgr.cancellation"
"""Its :class:`Cancellation`, by its client's leaving."""

PEER_UID = "connmgr.peer_uid"
"""The user at the other end of the Unix socket, if the request came by it."""

PASSED = "connmgr.passed"
"""The function that returns a duplicate of the descriptor that came with the request by the Unix socket, or None."""

ROOM = "connmgr.room"
"""A :class:`connmgr.engine.running.Room`, which waits until the client has read what was sent."""

HAND_OVER = "connmgr.hand_over"
"""The function that hands over the client's socket to a stream, if nothing came behind the request."""

CALLER = "connmgr.caller"
"""The key in the WSGI environment for the :class:`Caller` of a request that the daemon makes itself, on behalf of a
client whose rights are known already. No header of a client has such a name."""


STORE = "connmgr.store"
"""The function that stores the run of a request to start one, in a larger change, if it is not stored by itself."""

LONGEST_PATH = 200


@dataclass
class RequestContext:
    """One request: ``about`` names its subjects, ``details`` has names and numbers of its outcome.

    Neither contains the request's payload: no secret, no file content, no output.
    """

    id: str
    began: float
    environ: dict[str, Any]
    """The request itself, as a WSGI environment."""

    continuation: Continuation
    path: str
    """The path of its endpoint, or the beginning of another path that was asked for."""

    is_known: bool
    """Whether there is such an endpoint."""

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

    resources: ExitStack = field(default_factory=ExitStack)
    """Context managers to close when the answer is sent."""

    slot: ExitStack = field(default_factory=ExitStack)
    """Holds its slot, if it has one; closed with the resources, or before."""

    loan: Loan | None = None
    """The loan of secrets by which it has used a connection."""

    client: str | None = None
    caller: Caller | None = None
    told: Callable[[ConnmgrError], ConnmgrError] = lambda error: error
    """Returns an error as its caller may read it (:meth:`connmgr.rights.authorisation.Authorisation.told`)."""

    code: str | None = None

    @property
    def holder(self) -> str | None:
        """Whose share of the daemon it uses (:mod:`connmgr.shares`)."""
        return self.caller.holder if self.caller else None

    @property
    def end_of_loan(self) -> str | None:
        """Why the loan of secrets by which it runs is over; None if it is not, or there is none."""
        return None if self.loan is None else self.loan.over


def open_context() -> RequestContext:
    """Create the context of the request that Flask has, and return it."""
    # Each use of Flask's request costs three calls.
    request = flask.request
    rule, environ = request.url_rule, request.environ
    refusal: Refusal | None = environ.get(REFUSAL)
    if refusal is not None and not refusal.header_read:
        # Flask finds an endpoint in any target.
        asked = environ.get("REQUEST_URI", "").partition("?")[0]
        return open_context_of(environ, asked[:LONGEST_PATH], is_known=False)
    return open_context_of(environ, rule.rule if rule else request.path[:LONGEST_PATH], is_known=rule is not None)


def open_context_of(environ: dict[str, Any], path: str, *, is_known: bool = True) -> RequestContext:
    """Create the context of a request to ``path`` in Flask's current application, and return it."""
    continuation = environ.get(CONTINUATION) or Continuation(resumes=False)
    # The id is not a secret, and random bytes from the system would cost a switch of threads.
    id = f"{random.getrandbits(32):08x}"
    context = RequestContext(id, time.perf_counter(), environ, continuation, path, is_known)
    flask.g.context = context
    return context


def request_context() -> RequestContext:
    """Return the context of the request that is being answered."""
    # By the object behind Flask's proxy: an attribute of the proxy itself costs twice as many calls, a dozen times a
    # request.
    context: RequestContext = flask.g._get_current_object().context
    return context


def _has_context() -> bool:
    return flask.has_app_context() and "context" in flask.g


def holder() -> str | None:
    """Return whose share of the daemon is used here; None, as for the owner, outside of requests."""
    return request_context().holder if _has_context() else None


def continuation() -> Continuation:
    """Return what lasts of the request that is being answered if it is suspended."""
    return request_context().continuation


def detail(**details: Any) -> None:
    """Add to the details of this request."""
    request_context().details.update(details)


def note_forwarding(transport: Transport) -> None:
    """Add to the details of this request that what it runs may use a forwarded ssh-agent, if so."""
    if transport.forwards_agent:
        detail(agentForwarded=True)


def ground_of(connection: str) -> Ground | None:
    """Return the ground on which this request was approved for ``connection``; None if it needed no approval."""
    return request_context().grounds.get(connection)


def part(what: dict[str, str], **details: Any) -> None:
    """Record ``details`` of the request's effect on one ``connection`` or ``category``."""
    request_context().parts.append((what, details))


def caller() -> Caller:
    """Return the sender of this request, to an endpoint that is not public."""
    sender = request_context().caller
    assert sender is not None, "a public endpoint has no caller"  # noqa: S101 - a fault of the endpoint's declaration
    return sender


def sees_work(work: StoredRun | StoredSchedule) -> bool:
    """Whether the sender of this request sees a run or a schedule: the owner all, a token those of its descendants."""
    grant = caller().grant
    return grant is None or grant.id in work.spec["lineage"]


class _WhileValid(Cancellation):
    """The end of a client's interest, or of the validity of its token or loan; only the first wakes who waits."""

    def __init__(self, client: Cancellation, asking: Caller, context: RequestContext) -> None:
        super().__init__()
        self._client = client
        self._asking = asking
        self._context = context

    @property
    def cancelled(self) -> bool:
        return bool(self._context.end_of_loan) or self._asking.ended or self._client.cancelled

    @property
    def reason(self) -> str:
        why = self._asking.invalid
        if why is None:
            return "The loan of secrets ended" if self._context.end_of_loan else self._client.reason
        if self._asking.over is not None:
            return "The page was left"
        return "The token has expired" if isinstance(why, TokenExpired) else "The token was revoked"

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        with self._client.waking(wake):
            yield


def cancellation() -> Cancellation:
    """Return the end of this request: its client leaves, or its token becomes invalid."""
    client: Cancellation = request_context().environ.get(CANCELLATION, NEVER)
    asking = caller()
    return _WhileValid(client, asking, request_context()) if asking.may_end else client


def require_client() -> None:
    """Raise :class:`connmgr.errors.CommandCancelled` if the client of this request has left."""
    client: Cancellation = request_context().environ.get(CANCELLATION, NEVER)
    client.require()


def note_loan(loan: Loan, connection: str) -> bool:
    """Note that the request that is being answered uses ``connection`` by a loan; return False outside of requests."""
    if not _has_context():
        return False
    context = request_context()
    context.loan = loan
    lent = context.details.setdefault("lent", {"user": loan.principal.name, "session": loan.session, "connections": []})
    if connection not in lent["connections"]:
        lent["connections"].append(connection)
    return True


def while_valid(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield ``pieces`` of a transfer for this request; raise the error of the caller's token if it becomes invalid."""
    asking = caller()
    return _until_ended(pieces, asking, request_context()) if asking.may_end else iter(pieces)


def _until_ended(pieces: Iterable[Piece], asking: Caller, context: RequestContext) -> Iterator[Piece]:
    for piece in pieces:
        asking.require_valid()
        require_loan(context)
        yield piece


def require_loan(context: RequestContext) -> None:
    """Raise :class:`connmgr.errors.SecretLocked` if a loan by which the request ``context`` runs is over."""
    if context.loan is not None and (why := context.end_of_loan) is not None:
        raise loan_over(context.loan, why)
