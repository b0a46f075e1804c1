"""Answers a command with lines: its output as it prints, and finally its end."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable, Iterator
from typing import Any

import flask

from connmgr.api.account import Account, account
from connmgr.api.answer import LINES, as_lines
from connmgr.api.errors import told
from connmgr.api.services import services
from connmgr.engine.running import Room, Running
from connmgr.errors import CommandCancelled, NoSuchDirectory

ROOM = "connmgr.room"
"""The key in the WSGI environment for a :class:`Room`, which waits until the client has read what was sent."""

JSON = "application/json"
NAMES = ("stdout", "stderr")


Line = dict[str, Any]
Burst = list[Line]
Encode = Callable[[bytes, bool], str]
"""Encodes output as text; keeps an incomplete character back, except in the last piece."""


def is_wanted() -> bool:
    """Whether the client asks for lines: it accepts their media type, and does not prefer JSON."""
    accepted: str = flask.request.environ.get("HTTP_ACCEPT", "")
    # Most clients do not mention the type, and parsing takes longer than this.
    if LINES not in accepted.lower():
        return False
    qualities = dict.fromkeys((LINES, JSON), 0.0)
    for value, quality in flask.request.accept_mimetypes:
        kind = value.partition(";")[0].strip().lower()
        if kind in qualities:
            qualities[kind] = max(qualities[kind], quality)
    return 0 < qualities[LINES] >= qualities[JSON]


def respond(running: Running, encoding: str, *, restarted: bool = False, begins: bool = False) -> flask.Response:
    """Return the response with the output of ``running`` as it comes, and its exit code or error.

    If the shell was ``restarted``, or the command ``begins`` while its input is yet to come, the first line says so.
    :raises NoSuchDirectory: the command did not begin.
    """
    room: Room = flask.request.environ.get(ROOM, lambda _: True)
    lines = _lines(running, encoding, room, account(), debug=services().settings.debug, begins=begins)
    first: Burst = [{"restarted": True}] if restarted else []
    if begins:
        # The client may wait for it before it reads its own input.
        return as_lines(_resumed([*first, {"begun": True}], lines))
    # The header is sent with the first line anyway, so waiting for it loses nothing.
    return as_lines(_resumed([*first, *next(lines)], lines))


def _resumed(first: Burst, lines: Iterator[Burst]) -> Iterator[Burst]:
    yield first
    yield from lines


def _lines(
    running: Running, encoding: str, room: Room, known: Account, *, debug: bool, begins: bool
) -> Iterator[Burst]:
    printed = dict.fromkeys(NAMES, 0)
    encoders = {name: _encoder(encoding) for name in NAMES}
    last: Line
    try:
        for piece in running.events(room):
            for name, data in zip(NAMES, piece, strict=True):
                printed[name] += len(data)
                if data and (text := encoders[name](data, False)):
                    yield [{name: text}]
        last = {"exitCode": running.exit_code}
        known.details.update(last)
    except GeneratorExit:
        known.code = CommandCancelled.code
        raise
    except BaseException as error:
        if isinstance(error, NoSuchDirectory) and not (begins or any(printed.values())):
            raise
        # A plugin may raise any exception, and the status of the answer is already sent.
        _, body = told(error, known, debug=debug)
        last = body if "error" in body else {"error": body}
    finally:
        known.details.update({f"{name}Bytes": size for name, size in printed.items()})
    rest = [{name: text} for name, encode in encoders.items() if (text := encode(b"", True))]
    yield [*rest, last]


def _encoder(encoding: str) -> Encode:
    if encoding == "base64":
        return lambda data, _: base64.b64encode(data).decode()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda data, final: decoder.decode(data, final=final)
