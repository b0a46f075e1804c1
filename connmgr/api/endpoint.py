"""Endpoints: their declaration, the way of a request through one, and groups of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import flask
import marshmallow

from connmgr.api.answer import as_json
from connmgr.api.auth import Caller
from connmgr.api.body import LISTED_VALUES, MAX_VALUES, REFUSAL, read
from connmgr.api.context import CALLER, RequestContext, caller, request_context, require_client
from connmgr.api.record import announce
from connmgr.api.schema import schema_of
from connmgr.api.selection import elevated
from connmgr.api.services import Services, services
from connmgr.api.step_up import require_step_up
from connmgr.audit.entry import RECORDED
from connmgr.contract.message import Message, members, to_json
from connmgr.errors import ApprovalRequired, ConnmgrError
from connmgr.multiplex.config import CHANGING
from connmgr.rights.actions import Action
from connmgr.rights.scopes import ARGV
from connmgr.suspension import Continuation, Suspended

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

    action: Action[Any]
    """The action of a request."""

    about: Sequence[str] = ()
    """The fields that name a request's subjects. None of them holds a secret, because the audit log records them."""

    selects: Callable[[Any], Message] | None = None
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

    suspends: bool = False
    """Whether its view may raise :class:`Suspended` and run again: it only reads, keeps in the request's continuation
    what it has begun, or asks for an approval before it changes a file. See :mod:`connmgr.suspension`."""

    stops: bool = False
    """Whether it may take one of the extra slots when the others are taken, because it frees one."""

    has_content: bool = False
    """Whether its body may have ``max-body`` bytes, because it carries content or lists; others may have 64 KiB."""

    has_large_answer: bool = False
    """Whether its answer may have megabytes: one at a time is made for each token."""

    most_values: int = MAX_VALUES
    """Most values in the JSON of a token's request; the owner may send as many as where lists are expected."""

    public: bool = False
    """Whether it needs no token."""

    ticketed: bool = False
    """Whether a ticket in its query takes the place of a token, and a token alone is refused."""

    scraped: bool = False
    """Whether it accepts the static token of the setting ``metrics-token-file``."""

    methods: Sequence[str] = ("POST",)

    raw_body: str = ""
    """What the bytes of the body are, if it is not JSON; ``request`` then loads the query instead."""

    raw_answer: str = ""
    """What the bytes of the answer are, if it is not JSON."""

    raw_type: str = "application/octet-stream"
    """The media type of an answer in bytes."""

    example: Mapping[str, Any] | None = None
    answer: Mapping[str, Any] | None = None
    """A request and its response, for the description."""

    renames: Mapping[str, str] = field(default_factory=dict)
    """Other names of members of its answers."""

    def __call__(self) -> flask.Response:
        daemon, context = services(), self._context()
        if not self.public:
            self._find_caller(daemon, context)
        # Who sends a body decides how many values it may have, and at whose pace it is parsed.
        request = read(
            context.environ,
            self.request,
            raw=bool(self.raw_body),
            most=self.most_values if context.holder else max(self.most_values, LISTED_VALUES),
            turn=lambda rest: daemon.pace.turn(context.holder, rest),
            in_pieces=bool(context.holder),
        )
        return self._carry_out(daemon, context, request, self._respond)

    def _context(self) -> RequestContext:
        context = request_context()
        context.audited, context.action = self.audited, self.action.name
        return context

    def _carry_out(
        self, daemon: Services, context: RequestContext, request: Any, respond: Callable[[Any], flask.Response]
    ) -> flask.Response:
        """Authorise the loaded ``request``, call the view, and return the response by ``respond``."""
        # Rules and visibility judge the elevated connection, and not the one below it that the request names.
        request = elevated(request, context.caller.token if context.caller else None)
        if self.selects is not None:
            request = self.selects(request)
        values = members(request) if isinstance(request, Message) else {}
        context.about = {
            name: to_json(value) if isinstance(value := values[name], Message) else value
            for name in self.about
            if name in values
        }
        if context.recorded is not None:
            context.about[RECORDED] = context.recorded
        if context.audited and request:
            # A job or a terminal is named by its own id; the audit log is searched by connections.
            work = daemon.authorisation.work_of(request)
            context.about |= {"connection": work.connection} if work else {}
        with context.resources as resources:
            try:
                ready = self._ready(daemon, context, request, resources)
                with daemon.answers.making(context.holder) if self.has_large_answer else nullcontext():
                    result = _resume_or_wait(
                        context.continuation, lambda: self._call_view(daemon, context, request, ready)
                    )
                    # It has none while it has a slot, and its answer may be large.
                    with daemon.computing.turn(context.holder) if self.waits else nullcontext():
                        response = respond(result)
                if self.reads:
                    # Others are answered in any case: what they have done would be done once more.
                    daemon.answers.count(context.holder, response)
                if context.loan is not None and (why := context.end_of_loan) is not None:
                    # Its end came too early to find what this request has opened.
                    daemon.loans.ended_since(context.loan, why)
            except Suspended as suspended:
                # The only place that decides it: the server takes the request back, and sends nothing of this response.
                # Without the traceback, whose frames would be kept while the request waits.
                context.continuation.suspended = suspended.with_traceback(None)
                return flask.Response()
            except Exception:
                raise
            except BaseException as error:
                # A plugin may raise any exception, even an exit, for which Flask would send no answer.
                raise RuntimeError(f"{type(error).__name__} from within a request") from error
            if response.is_streamed:
                # Sending the answer waits for a machine too, and begins after this has returned.
                context.resources = resources.pop_all()
        return response

    def _call_view(self, daemon: Services, context: RequestContext, request: Any, ready: Any) -> Any:
        """Return the result of the view for the authorised request ``ready``.

        If the ground of its approval has moved before it began, the ``request`` is authorised once more: it asks again.
        """
        for _ in range(MAX_MOVES):
            try:
                result = self.view(ready) if self.request else self.view()
            except Suspended as suspended:
                if not self.suspends:
                    raise RuntimeError(f"The view of {self.path} may not run twice.") from suspended
                raise
            except ApprovalRequired as error:
                if "approval" in error.details:
                    raise
                moved = error
            else:
                if self.action.name in CHANGING:
                    daemon.kept_config.look()
                return result
            daemon.approvals.not_begun()
            # After the last move too: where a person is asked again, the error names the new approval.
            ready = self._authorise(daemon, context, request)
        raise moved

    def _ready(self, daemon: Services, context: RequestContext, request: Any, resources: ExitStack) -> Any:
        """Return the authorised request; ``resources`` then holds its slot."""
        concerned = context.caller is not None and daemon.authorisation.concerns(context.caller)
        try:
            if concerned:
                request = _resume_or_wait(context.continuation, lambda: self._authorise(daemon, context, request))
            if self.waits:
                resources.enter_context(context.slot)
                context.slot.enter_context(daemon.slots.taken(context.holder, stops=self.stops))
                if not self.stops:
                    # It may have waited, behind the client's earlier request or for an approval.
                    require_client()
            announce(daemon, context, reads=self.reads)
        except Exception:
            if concerned:
                # Nothing was done with it: the approval is there for the next attempt.
                daemon.approvals.give_back()
            raise
        if concerned:
            daemon.approvals.begun()
        return request

    def _authorise(self, daemon: Services, context: RequestContext, request: Any) -> Any:
        """Return the loaded request as its caller may carry it out."""
        permitted = daemon.authorisation.check(caller(), self.action, request or None)
        context.authority |= permitted.reasons
        context.grounds, context.requested = permitted.grounds, permitted.requested
        return permitted.request

    def _find_caller(self, daemon: Services, context: RequestContext) -> Caller:
        passed: Caller | None = context.environ.get(CALLER)
        if passed is not None:
            self._admit_caller(daemon, context, passed)
            return passed
        header = context.environ.get("HTTP_AUTHORIZATION")
        anonymous = header is None and daemon.settings.no_auth
        scraper = daemon.scraper.find(header) if self.scraped and header else None
        caller = daemon.anonymous if anonymous else scraper or daemon.tokens.find(header or "")
        self._admit_caller(daemon, context, caller)
        return caller

    def _admit_caller(self, daemon: Services, context: RequestContext, caller: Caller) -> None:
        """Note the sender of this request, until it is recorded as answered.

        :raises ConnmgrError: the caller's token is invalid, exceeds a quota, or lacks a scope.
        :raises StepUpRequired: it is a page that needs one.
        """
        # Before any refusal: the audit log names the sender of a refused request, too.
        context.caller = caller
        context.told = partial(daemon.authorisation.told, caller)
        if caller.over is not None:
            # A ticket may outlast the session of the page that asked for it.
            raise caller.over
        grant, memory = caller.grant, context.continuation.memory
        if grant is not None:
            context.authority |= {"token": grant.id, "tokenName": grant.name}
        # A suspended request runs again from its beginning, and uses the quota of its token once.
        daemon.tokens.begin(caller, context.environ["REMOTE_ADDR"], counts="counted" not in memory)
        memory["counted"] = True
        require_step_up(caller, self.action, daemon.settings.web_step_up)
        if grant is not None:
            # Before the request's content is examined.
            grant.require_scope(self.action.name)
            if REFUSAL in context.environ and self.action.runs:
                # Without such a scope no large body is taken.
                grant.require_one(ARGV)

    def answered(self, members: dict[str, Any]) -> dict[str, Any]:
        """Return the members of an answer by the names that this endpoint gives them, two levels deep."""
        if not self.renames:
            return members
        return {self.renames.get(name, name): self._inside(value) for name, value in members.items()}

    def _inside(self, value: Any) -> Any:
        # Only the names of our own fields change; stored data stays as it is.
        if isinstance(value, list | Iterator):
            return map(self._inside, value)
        if isinstance(value, Mapping):
            return {self.renames.get(name, name): item for name, item in value.items()}
        return value

    def _respond(self, result: Any) -> flask.Response:
        if isinstance(result, flask.Response):
            return result
        if result is None:
            return flask.Response(mimetype="application/json")
        if isinstance(result, Message):
            return as_json(self.answered(to_json(result, iter)))
        shown = self.response.dump(result) if self.response and not self.dumped else result
        return as_json(shown)


def _resume_or_wait(continuation: Continuation, work: Callable[[], Any]) -> Any:
    """Return the result of ``work``; where the server cannot resume this request, wait here for the news and try again.

    :raises Suspended: the server resumes it.
    """
    while True:
        try:
            return work()
        except Suspended as suspended:
            if continuation.resumes:
                raise
            continuation.wait(suspended)


def _message_in(view: View, name: str) -> type[Message] | None:
    """Return the message that an annotation of a view names; None where it names none, as ``flask.Response`` does.

    :raises KeyError: it names what its module does not have when it runs: the request would not be validated.
    """
    # By their words: evaluating all annotations would take longer than declaring the endpoints.
    for word in str(view.__annotations__.get(name)).split(" | "):
        kind = None if word == "None" or "." in word else vars(sys.modules[view.__module__])[word]
        if isinstance(kind, type) and issubclass(kind, Message):
            return kind
    return None


PUBLIC_FILES: dict[str, Any] = {"audited": False, "described": False, "public": True, "methods": ("GET",)}
"""The declaration of endpoints from which browsers read files that are the same for everybody."""


class Group:
    """The endpoints below one path, ``/name/…`` unless ``prefix`` is another, in the module of that name."""

    def __init__(self, name: str, description: str, *, prefix: str | None = None) -> None:
        self.name = name
        self.description = description
        self.endpoints: list[Endpoint] = []
        self._prefix = f"/{name}" if prefix is None else prefix

    def endpoint(
        self,
        path: str,
        *,
        action: Action[Any] | str = "",
        request: type[Message] | None = None,
        response: type[Message] | None = None,
        lines: type[Message] | None = None,
        kind: type[Endpoint] = Endpoint,
        **declared: Any,
    ) -> Callable[[View], View]:
        """Declare the decorated function as the endpoint at ``path``; ``declared`` are members of its ``kind``.

        The annotations of the view say which messages it takes and returns; ``request`` and ``response`` are for a view
        that takes another message than is sent, or sends its response itself. Without an ``action`` it is that of the
        path's words, such as ``connection.query``. One given by its name alone runs nothing, and only its scopes and
        visibility limit it.
        """
        whole = self._prefix + path
        name = action or ".".join(word for word in whole.split("/") if word and not word.startswith("<"))

        def declare(view: View) -> View:
            # One schema instance for all requests: creating it costs more than loading with it.
            messages = {
                "request": request or _message_in(view, "request"),
                "response": response or _message_in(view, "return"),
                "lines": lines,
            }
            schemas: dict[str, Any] = {part: message and schema_of(message)() for part, message in messages.items()}
            done = Action(name) if isinstance(name, str) else name
            self.endpoints.append(kind(path=whole, view=view, action=done, **schemas, **declared))
            return view

        return declare
