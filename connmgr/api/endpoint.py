"""One endpoint: its declaration, and the way of a request through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import flask
import marshmallow

from connmgr.api.account import Account, account, caller, require_client
from connmgr.api.answer import as_json
from connmgr.api.auth import Caller
from connmgr.api.body import LISTED_VALUES, MAX_VALUES, REFUSAL, read
from connmgr.api.elevate import elevated
from connmgr.api.parking import Parked, Turns
from connmgr.api.record import announce
from connmgr.api.schema import Filter, Id
from connmgr.api.services import Services, services
from connmgr.audit.entry import RECORDED
from connmgr.contract.message import Message, to_json
from connmgr.errors import ApprovalRequired, ConnmgrError
from connmgr.rights.action import Action
from connmgr.rights.scopes import ARGV
from connmgr.rights.subjects import NAMES

View = Callable[..., Any]

MAX_MOVES = 3
"""A request is tried so often while the directory of its shell moves between its approval and its turn."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An endpoint as it was declared; calling it answers the current request."""

    path: str

    view: View
    """The function that does the work; its docstring describes the endpoint.

    Its argument is the value loaded by ``request``, if there is one. It returns a value for ``response`` (or dumps it
    itself if ``dumped``), a :class:`flask.Response`, or None for 200 with an empty body.
    """

    action: Action
    """The action of a request."""

    about: Sequence[str] = ()
    """The fields that name a request's subjects. None of them holds a secret, because the audit log records them."""

    selects: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Replaces filters or the name of a saved command in a loaded request by what they mean, before authorisation."""

    reads: bool = False
    """Whether it changes and runs nothing. Other requests are refused if a required audit log cannot be written."""

    audited: bool = True
    described: bool = True
    request: marshmallow.Schema | None = None
    response: marshmallow.Schema | None = None
    dumped: bool = False

    lines: marshmallow.Schema | None = None
    """A line of the answer for a client that asks for lines, for the description."""

    raises: Sequence[type[ConnmgrError]] = ()
    """Its errors, in addition to those of every endpoint."""

    waits: bool = False
    """Whether it takes one of the slots for requests that wait for a machine."""

    stops: bool = False
    """Whether it may take one of the extra slots when the others are taken, because it frees one."""

    has_content: bool = False
    """Whether its body may have ``max-body`` bytes, because it carries content or lists; others may have 64 KiB."""

    most_values: int = MAX_VALUES
    """Most values in the JSON of a token's request; the owner may send as many as where lists are expected."""

    public: bool = False
    """Whether it needs no token."""

    scraped: bool = False
    """Whether it accepts the static token of the setting ``metrics-token-file``."""

    methods: Sequence[str] = ("POST",)

    raw_body: str = ""
    raw_answer: str = ""
    """The content of an answer in bytes instead of JSON; ``request`` then loads the query instead of the body."""

    raw_type: str = "application/octet-stream"
    """The media type of an answer in bytes."""

    example: Mapping[str, Any] | None = None
    answer: Mapping[str, Any] | None = None
    """A request and its response, for the description."""

    renames: Mapping[str, str] = field(default_factory=dict)
    """Other names of members of its answers."""

    def __call__(self) -> flask.Response:
        found, known = services(), self._account()
        if not self.public:
            self._find_caller(found, known)
        request = read(
            known.environ,
            self.request,
            raw=bool(self.raw_body),
            most=self.most_values if known.holder else max(self.most_values, LISTED_VALUES),
            turn=lambda rest: found.pace.turn(known.holder, rest),
        )
        return self._carry_out(found, known, request, self._respond)

    def _account(self) -> Account:
        known = account()
        known.audited, known.action = self.audited, self.action.name
        return known

    def _carry_out(
        self, found: Services, known: Account, request: Any, respond: Callable[[Any], flask.Response]
    ) -> flask.Response:
        """Authorise the loaded ``request``, call the view, and return the response by ``respond``."""
        request = elevated(request, known.caller.token if known.caller else None)
        if self.selects is not None:
            request = self.selects(request)
        known.about = {
            name: to_json(value) if isinstance(value := request[name], Message) else value
            for name in self.about
            if name in request
        }
        if known.recorded is not None:
            known.about[RECORDED] = known.recorded
        if known.audited and request:
            for _, work in found.authorisation.subjects.works(request):
                known.about |= {"connection": work.connection} if work else {}
        with known.held as held:
            try:
                ready = self._ready(found, known, request, held)
                result = _awaited(known.turns, lambda: self._viewed(found, known, request, ready))
                # It has none while it has a slot, and its answer may be large.
                with found.computing.turn(known.holder) if self.waits else nullcontext():
                    response = respond(result)
                if known.loan is not None and (why := known.loan.over) is not None:
                    # Its end came too early to find what this request has opened.
                    found.loans.ended_since(known.loan, why)
            except Parked as parked:
                # The frames of its traceback would be kept while it waits.
                known.turns.parked = parked.with_traceback(None)
                return flask.Response()
            except Exception:
                raise
            except BaseException as error:
                # A plugin may raise any exception, even an exit, for which Flask would send no answer.
                raise RuntimeError(f"{type(error).__name__} from within a request") from error
            if response.is_streamed:
                # Sending the answer waits for a machine too, and begins after this has returned.
                known.held = held.pop_all()
        return response

    def _viewed(self, found: Services, known: Account, request: Any, ready: Any) -> Any:
        """Return the result of the view for the authorised request ``ready``.

        If the ground of its approval has moved before it began, the ``request`` is authorised once more: it asks again.
        """
        for _ in range(MAX_MOVES):
            try:
                return self.view(ready) if self.request else self.view()
            except ApprovalRequired as error:
                if "approval" in error.details:
                    raise
                moved = error
            found.approvals.not_begun()
            ready = self._permitted(found, known, request)
        raise moved

    def _ready(self, found: Services, known: Account, request: Any, held: ExitStack) -> Any:
        """Return the authorised request; ``held`` then holds its slot."""
        concerned = known.caller is not None and found.authorisation.concerns(known.caller)
        try:
            if concerned:
                request = _awaited(known.turns, lambda: self._permitted(found, known, request))
            if self.waits:
                held.enter_context(found.slots.taken(known.holder, stops=self.stops))
                if not self.stops:
                    # It may have waited, behind the client's earlier request or for an approval.
                    require_client()
            announce(found, known, reads=self.reads)
        except Exception:
            if concerned:
                found.approvals.give_back()
            raise
        if concerned:
            found.approvals.begun()
        return request

    @cached_property
    def subjects(self) -> frozenset[str]:
        """The fields that name a request's subjects by ids, paths or data of connections."""
        declared = self.request.fields if self.request else {}
        return frozenset(name for name in NAMES if name in declared and _is_subject(declared[name]))

    def _permitted(self, found: Services, known: Account, request: Any) -> Any:
        """Return the loaded request as its caller may carry it out."""
        permitted = found.authorisation.check(caller(), self.action, request, self.subjects)
        known.authority |= permitted.reasons
        known.grounds, known.requested = permitted.grounds, permitted.requested
        return permitted.request

    def _find_caller(self, found: Services, known: Account) -> Caller:
        header = known.environ.get("HTTP_AUTHORIZATION")
        anonymous = header is None and found.settings.no_auth
        scraper = found.scraper.find(header) if self.scraped and header else None
        caller = found.anonymous if anonymous else scraper or found.tokens.find(header or "")
        self._admit_caller(found, known, caller)
        return caller

    def _admit_caller(self, found: Services, known: Account, caller: Caller) -> None:
        """Note the sender of this request, until it is recorded as answered.

        :raises ConnmgrError: the caller's token is invalid, exceeds a quota, or lacks a scope.
        """
        known.caller = caller
        grant, kept = caller.grant, known.turns.kept
        if grant is not None:
            known.authority |= {"token": grant.id, "tokenName": grant.name}
        found.tokens.begin(caller, known.environ["REMOTE_ADDR"], counts="counted" not in kept)
        kept["counted"] = True
        if grant is not None:
            # Before the request's content is examined.
            grant.require_scope(self.action.name)
            if REFUSAL in known.environ and self.action.runs:
                # Without such a scope no large body is taken.
                grant.require_one(ARGV)

    def answered(self, members: dict[str, Any]) -> dict[str, Any]:
        """Return the members of an answer by the names that this endpoint gives them, two levels deep."""
        if not self.renames:
            return members
        return {self.renames.get(name, name): self._inside(value) for name, value in members.items()}

    def _inside(self, value: Any) -> Any:
        # Only the names of our own fields change; stored data stays as it is.
        if isinstance(value, list):
            return [self._inside(item) for item in value]
        if isinstance(value, Mapping):
            return {self.renames.get(name, name): item for name, item in value.items()}
        return value

    def _respond(self, result: Any) -> flask.Response:
        if isinstance(result, flask.Response):
            return result
        if result is None:
            return flask.Response(mimetype="application/json")
        if isinstance(result, Message):
            return as_json(self.answered(to_json(result)))
        shown = self.response.dump(result) if self.response and not self.dumped else result
        return as_json(shown)


def _is_subject(field: marshmallow.fields.Field[Any]) -> bool:
    if isinstance(field, marshmallow.fields.List):
        return isinstance(field.inner, Id)
    return not isinstance(field, Filter)


def _awaited(turns: Turns, work: Callable[[], Any]) -> Any:
    """Return the result of ``work``, which no longer waits for news."""
    while True:
        try:
            return work()
        except Parked as parked:
            if turns.resumes:
                raise
            parked.wait()
