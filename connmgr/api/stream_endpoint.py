"""Endpoints that are WebSockets: how a request becomes a stream."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import flask
import marshmallow

from connmgr.api.account import Account, account, require_valid
from connmgr.api.auth import Caller
from connmgr.api.body import REFUSAL, Refusal, load, parse, read_query
from connmgr.api.endpoint import Endpoint
from connmgr.api.errors import told
from connmgr.api.parking import Parked
from connmgr.api.services import Services, services
from connmgr.errors import BadFrame, UpgradeRequired
from connmgr.pipes.clients import Opening, refuse

HAND_OVER = "connmgr.hand_over"
"""The key in a request's environment for the function that hands over its client's socket."""

FIRST_MESSAGE_SECONDS = 10.0

UPGRADE_REST = 30.0
"""The rest after a token's upgrade, in terms of the answer 101, which is a small part of the work for a stream."""

_OPENING = "opening"
"""The key among what a request keeps from turn to turn for the stream whose first message it waits for."""

Begin = Callable[[Opening], None]
"""The result of a view: a function that joins the client with its stream, without waiting."""


@dataclass(frozen=True, kw_only=True)
class StreamEndpoint(Endpoint):
    """An endpoint that answers 101, then speaks in :mod:`connmgr.streams.frames`; its view returns a :data:`Begin`."""

    methods: tuple[str, ...] = ("GET",)

    frames: str
    """The frames in both directions, for the description."""

    first_message: bool = False
    """Whether ``request`` loads the first message, which is JSON, instead of the path and the query."""

    redeems: Callable[[str, Mapping[str, Any]], Caller] | None = None
    """Returns the caller of a ticket for the subject in the path; None if tickets are not accepted."""

    def __call__(self, **in_path: Any) -> flask.Response:
        found, known = services(), self._account()
        opening: Opening | None = known.turns.kept.get(_OPENING)
        if opening is not None:
            return self._begin_after_message(found, known, opening, in_path)
        opening = Opening(flask.request.headers.get)
        self._admit(found, known, opening, in_path)
        refusal: Refusal | None = known.environ.get(REFUSAL)
        if refusal is not None:
            raise refusal.error
        if not self.first_message:
            members = {**in_path, **read_query(flask.request.query_string, self._schema)}
            return self._carry_out(found, known, load(self._schema, members), partial(self._begin, opening))
        _accept(opening)
        known.turns.kept[_OPENING] = opening
        return self._begin_after_message(found, known, opening, None)

    def _begin_after_message(
        self, found: Services, known: Account, opening: Opening, in_path: Mapping[str, Any] | None
    ) -> flask.Response:
        """Carry out the request in the first message of ``opening``; until it has come, wait without a thread.

        ``in_path`` is given in a further turn, in which the caller is not admitted yet.
        """
        try:
            if in_path is not None:
                self._admit(found, known, opening, in_path)
            message = _first_message(found, known, opening)
            require_valid()
            request = load(self._schema, parse(message))
            return self._carry_out(found, known, request, partial(_begun, opening))
        except Parked as parked:
            # The frames of its traceback would be kept while it waits.
            known.turns.parked = parked.with_traceback(None)
            return flask.Response()
        except Exception as error:  # noqa: BLE001 - every error is told in a frame from here on
            refuse(found.streams.loop, opening, told(error, known, debug=False)[0])
            return flask.Response(status=101)

    @property
    def _schema(self) -> marshmallow.Schema:
        assert self.request is not None, "a stream's endpoint says what it takes"  # noqa: S101 - the declaration's fault
        return self.request

    def _admit(self, found: Services, known: Account, opening: Opening, in_path: Mapping[str, Any]) -> None:
        if self.redeems is None or opening.ticket is None:
            asking = self._find_caller(found, known)
        else:
            asking = self.redeems(opening.ticket, in_path)
            self._admit_caller(found, known, asking)
        opening.rests = found.streams.rests
        opening.token, opening.holder, opening.has_ended = asking.token, asking.holder, lambda: asking.ended

    def _begin(self, opening: Opening, begin: Begin) -> flask.Response:
        _accept(opening)
        return _begun(opening, begin)


def _accept(opening: Opening) -> None:
    """Take over the client's socket from the server, and answer 101.

    :raises UpgradeRequired: the server cannot hand it over.
    """
    hand_over: Callable[[], socket.socket] | None = flask.request.environ.get(HAND_OVER)
    if hand_over is None:
        raise UpgradeRequired("This server has no WebSockets, or more came than the header of one.")
    with services().upgrades.turn(account().holder, UPGRADE_REST):
        opening.accept(hand_over())


def _first_message(found: Services, known: Account, opening: Opening) -> bytes:
    message = opening.first_message()
    if message is None:
        known.turns.wait(partial(opening.await_message, found.streams.loop), FIRST_MESSAGE_SECONDS)
        raise BadFrame(f"The request of the stream did not come within {FIRST_MESSAGE_SECONDS:g} s.")
    return message


def _begun(opening: Opening, begin: Begin) -> flask.Response:
    begin(opening)
    return flask.Response(status=101)
