"""Endpoints that are WebSockets: how a request becomes a stream."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import flask
import marshmallow

from connmgr.api.auth import Caller
from connmgr.api.body import REFUSAL, Refusal, load, parse, read_query
from connmgr.api.context import HAND_OVER, RequestContext, caller, request_context
from connmgr.api.endpoint import Endpoint
from connmgr.api.errors import note_error
from connmgr.api.services import Services, services
from connmgr.errors import BadFrame, ConnmgrError, UpgradeRequired
from connmgr.multiplex.passengers import Passenger
from connmgr.pipes.clients import Opening, WaitingClient, refuse
from connmgr.streams.loop import Loop
from connmgr.suspension import Suspended

FIRST_MESSAGE_SECONDS = 10.0

UPGRADE_REST = 30.0
"""The rest after a token's upgrade, in terms of the answer 101, which is a small part of the work for a stream."""

_OPENING = "opening"
"""The key, in what a request keeps from run to run, of the stream whose first message it waits for."""

_REDEEMED = "redeemed"
"""The key there of the caller whose ticket was redeemed."""

Begin = Callable[[Any], None]
"""The result of a view: a function that joins the client with its stream, without waiting."""


@dataclass(frozen=True, kw_only=True)
class StreamEndpoint(Endpoint):
    """An endpoint that answers 101, then speaks in :mod:`connmgr.streams.frames`; its view returns a :data:`Begin`."""

    methods: tuple[str, ...] = ("GET",)

    frames: str
    """The frames in both directions, for the description."""

    first_message: bool = False
    """Whether ``request`` loads the first message, which is JSON, instead of the path and the query."""

    redeems: Callable[[str, Mapping[str, str]], Caller] | None = None
    """Returns the caller of a ticket for the subject in the path; None if tickets are not accepted."""

    def __call__(self, **in_path: Any) -> flask.Response:
        daemon, context = services(), self._context()
        opening: Opening | None = context.continuation.memory.get(_OPENING)
        if opening is not None:
            return self._begin_after_message(daemon, context, opening, in_path)
        if (context.environ["REQUEST_METHOD"], context.environ["SERVER_PROTOCOL"]) != ("GET", "HTTP/1.1"):
            # Flask takes HEAD for GET.
            raise UpgradeRequired("A WebSocket begins with a GET of HTTP/1.1.")
        opening = Opening(flask.request.headers.get)
        self._admit(daemon, context, opening, in_path)
        refusal: Refusal | None = context.environ.get(REFUSAL)
        if refusal is not None:
            raise refusal.error
        if not self.first_message:
            members = {**in_path, **read_query(flask.request.query_string, self._schema)}
            return self._carry_out(daemon, context, load(self._schema, members), partial(self._begin, opening))
        # A browser gets no body of a failed upgrade; from here on errors come as frames.
        _accept(opening)
        context.continuation.memory[_OPENING] = opening
        return self._begin_after_message(daemon, context, opening, None)

    def serve(self, passenger: Passenger) -> None:
        """Carry out the request that ``passenger`` has brought, whose context is open; or refuse it."""
        daemon, context = services(), request_context()
        try:
            daemon.require_running()
            self._context()
            self._find_caller(daemon, context)
            request = load(self._schema, dict(passenger.members))
            self._carry_out(daemon, context, request, partial(_begun, passenger))
        except Exception as error:  # noqa: BLE001 - the client understands no answer of HTTP
            passenger.refuse(note_error(error, context, debug=False)[0])

    def _begin_after_message(
        self, daemon: Services, context: RequestContext, opening: Opening, in_path: Mapping[str, str] | None
    ) -> flask.Response:
        """Carry out the request in the first message of ``opening``; until it has come, the request is suspended.

        ``in_path`` is given in a further run, in which the caller is not admitted yet.
        """
        try:
            if in_path is not None:
                self._admit(daemon, context, opening, in_path)
            message = _first_message(daemon, context, opening)
            caller().require_valid()
            request = load(self._schema, parse(message))
            return self._carry_out(daemon, context, request, partial(_begun, opening))
        except Suspended as suspended:
            # Nothing of the request has begun: its message is not there yet.
            context.continuation.suspended = suspended.with_traceback(None)
            return flask.Response()
        except Exception as error:  # noqa: BLE001 - every error is told in a frame from here on
            self._refuse(daemon.streams.loop, opening, note_error(error, context, debug=False)[0])
            return flask.Response(status=101)

    def _refuse(self, loop: Loop, opening: Opening, why: ConnmgrError) -> None:
        """Tell the client of a WebSocket why it gets no stream."""
        refuse(loop, opening, why)

    @property
    def _schema(self) -> marshmallow.Schema:
        assert self.request is not None, "a stream's endpoint says what it takes"  # noqa: S101 - the declaration's fault
        return self.request

    def _admit(self, daemon: Services, context: RequestContext, opening: Opening, in_path: Mapping[str, str]) -> None:
        if self.redeems is None or opening.ticket is None:
            asking = self._find_caller(daemon, context)
        else:
            memory = context.continuation.memory
            # It is used up, and the request may run again when its first message has come.
            asking = memory[_REDEEMED] = memory.get(_REDEEMED) or self.redeems(opening.ticket, in_path)
            self._admit_caller(daemon, context, asking)
        opening.rests = daemon.streams.rests
        opening.token, opening.holder, opening.has_ended = asking.token, asking.holder, lambda: asking.ended
        opening.session, opening.used = asking.id if asking.is_page else None, asking.note_use

    def _begin(self, opening: Opening, begin: Begin) -> flask.Response:
        _accept(opening)
        return _begun(opening, begin)


def _accept(opening: Opening) -> None:
    """Take over the client's socket from the server, and answer 101.

    :raises UpgradeRequired: the server cannot hand it over.
    """
    hand_over: Callable[[], socket.socket] | None = flask.request.environ.get(HAND_OVER)
    if hand_over is None:
        raise UpgradeRequired(
            "No WebSocket can be opened: data followed the request's header, or this server supports none."
        )
    with services().upgrades.turn(request_context().holder, UPGRADE_REST):
        opening.accept(hand_over())


def _first_message(daemon: Services, context: RequestContext, opening: Opening) -> bytes:
    message = opening.first_message()
    if message is not None:
        return message
    if context.continuation.is_younger_than(FIRST_MESSAGE_SECONDS):
        raise Suspended(partial(opening.await_message, daemon.streams.loop), FIRST_MESSAGE_SECONDS)
    raise BadFrame(f"The request of the stream did not come within {FIRST_MESSAGE_SECONDS:g} s.")


def _begun(opening: WaitingClient, begin: Begin) -> flask.Response:
    begin(opening)
    return flask.Response(status=101)
