"""``/event``: what changes at the daemon, told as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import flask

from connmgr import errors
from connmgr.api.answer import LINES
from connmgr.api.auth import Caller
from connmgr.api.context import HAND_OVER, caller, request_context
from connmgr.api.endpoint import Endpoint, Group
from connmgr.api.listeners import LinesClient, SocketClient, about_stream, open_kinds
from connmgr.api.services import services
from connmgr.api.stream_endpoint import UPGRADE_REST, StreamEndpoint
from connmgr.contract.event import ENDED, Event, EventStreamRequest, EventTicketResponse
from connmgr.errors import ConnmgrError, InvalidRequest, ScopeDenied
from connmgr.pipes.clients import Opening
from connmgr.streams.loop import Loop
from connmgr.streams.websocket import POLICY_VIOLATION

TICKET = "events"
"""The subject of a ticket for the stream."""

group = Group(
    "event",
    "What changes, as it happens: connections, links, shells, jobs, terminals, tunnels, approvals and tokens. One "
    "stream tells of all that its caller may see.",
)


@dataclass(frozen=True, kw_only=True)
class EventEndpoint(StreamEndpoint):
    """An endpoint that answers a GET with a WebSocket of text messages, and a POST with lines over HTTP."""

    methods: tuple[str, ...] = ("GET", "POST")

    def __call__(self, **in_path: Any) -> flask.Response:
        if flask.request.method == "POST":
            return Endpoint.__call__(self)
        return super().__call__(**in_path)

    def _respond(self, result: Any) -> flask.Response:
        """Answer with lines: the loop writes them, and the request's own answer is not sent."""
        hand_over = flask.request.environ.get(HAND_OVER)
        if hand_over is None:
            raise InvalidRequest("Data followed this request, whose answer never ends: send nothing behind it.")
        chunked = flask.request.environ.get("SERVER_PROTOCOL") == "HTTP/1.1"
        head = [
            "HTTP/1.1 200 OK",
            f"Content-Type: {LINES}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            f"X-Request-Id: {request_context().id}",
            "Connection: close",
            *(["Transfer-Encoding: chunked"] if chunked else []),
        ]
        with services().upgrades.turn(request_context().holder, UPGRADE_REST):
            connected = hand_over()
        result(partial(LinesClient, connected, "\r\n".join([*head, "", ""]).encode(), chunked=chunked))
        return flask.Response(status=200)

    def _refuse(self, loop: Loop, opening: Opening, why: ConnmgrError) -> None:
        def tell() -> None:
            client = SocketClient(opening, loop, lambda: None, lambda: None)
            client.send([about_stream(ENDED, 0, code=why.code, message=why.message)])
            client.end(POLICY_VIOLATION, why.message)

        loop.call(tell)


def _redeem(ticket: str, _: Mapping[str, str]) -> Caller:
    return services().tickets.redeem(ticket, TICKET)


Serve = Callable[[Any], None]


@group.endpoint(
    "/stream",
    kind=EventEndpoint,
    lines=Event,
    reads=True,
    audited=False,
    raises=[errors.ScopeDenied, errors.UpgradeRequired, errors.BadFrame, errors.StreamLimit],
    first_message=True,
    redeems=_redeem,
    frames="101, and then each line as a text message. The first message of the client is the request.",
    example={"kinds": ["job", "approval"]},
)
def stream(request: EventStreamRequest) -> Serve:
    """Tell what happens from now on, or after an event that the client knows: a line of JSON for each event.

    A POST is answered with lines that do not end by themselves. A WebSocket has a text message for each; a browser
    sends a ticket with it, as to `/terminal/attach/{terminal}`, and then the request as its first message. The stream
    begins with `begun`. Open it first, and read lists such as `/job/query` after that: nothing is missed then.

    The last 4,096 events are kept. When a client asks for events after one that is older, or that another daemon told,
    and when it reads too slowly, it gets `missed`. If nothing happens for 15 seconds, it gets `alive`. The stream ends
    with `ended`, for example when the token is revoked or the daemon stops; then connect again with `after`.

    Events of a kind need the scopes of the kind's `query`, such as `/job/query` for `job`, and the connection in sight.
    They name no commands, paths or secrets.
    """
    daemon, asking = services(), caller()
    seen = open_kinds(asking.grant)
    if lacking := [kind for kind in request.kinds or () if kind not in seen]:
        raise ScopeDenied(f"The token lacks the scope for events of the kind {lacking[0]}.")
    daemon.streams.require_room(asking.holder)
    kinds = request.kinds or seen
    after = request.after if request.ago is None else daemon.events.number_at(time.time() - request.ago)

    def serve(client: Any) -> None:
        connect = partial(SocketClient, client) if isinstance(client, Opening) else client
        daemon.listeners.begin(asking, kinds, after, connect)

    return serve


@group.endpoint("/ticket", audited=False, reads=True, answer={"ticket": "QRSMvsZIT0f1DRmIT4wtMxAhBCdnvFQBPQpZfRTqjYc"})
def ticket() -> EventTicketResponse:
    """Return a ticket with which the caller may open the stream from a browser: once, and within 30 seconds."""
    return EventTicketResponse(ticket=services().tickets.issue(TICKET, caller()))
