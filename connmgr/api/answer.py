"""Answers in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import flask

LINES = "application/x-ndjson"
"""The media type of values that come one a line."""

PIECE_CHARACTERS = 32 * 1024
"""Beyond so many, lines that came together are sent apart."""

# Made once: making it takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def as_json(value: Any, status: int = 200) -> flask.Response:
    """Return the response that has ``value`` for its body, and a newline, as a terminal wants one."""
    return flask.Response(encoded(value) + "\n", status=status, mimetype="application/json")


def as_lines(bursts: Iterable[Iterable[Any]]) -> flask.Response:
    """Return the response that sends each value as a line of JSON, as soon as its burst comes.

    The lines of a burst are sent together, since each sending costs the daemon and the client a system call. They are
    encoded while they are sent, outside of the request: ``bursts`` need no context of Flask's, and raise nothing, since
    the status is sent already. A generator is closed with the response, also if the client leaves.
    """
    response = flask.Response(_pieces(bursts), mimetype=LINES)
    close = getattr(bursts, "close", None)
    if close is not None:
        response.call_on_close(close)
    return response


def _pieces(bursts: Iterable[Iterable[Any]]) -> Iterator[str]:
    for burst in bursts:
        piece = ""
        for value in burst:
            line = encoded(value) + "\n"
            if piece and len(piece) + len(line) > PIECE_CHARACTERS:
                yield piece
                piece = ""
            piece += line
        if piece:
            yield piece


def encoded(value: Any) -> str:
    """Return ``value`` as JSON."""
    return _ENCODER.encode(value)
