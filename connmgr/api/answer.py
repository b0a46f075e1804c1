"""Answers in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import flask

LINES = "application/x-ndjson"
"""The media type of one JSON value per line."""

PIECE_CHARACTERS = 32 * 1024
"""Most characters of lines that are sent together."""

# Made once, because making an encoder takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def as_json(value: Any, status: int = 200) -> flask.Response:
    """Return the response with ``value`` as its body, and a newline for terminals."""
    return flask.Response(encoded(value) + "\n", status=status, mimetype="application/json")


def as_lines(bursts: Iterable[Iterable[Any]]) -> flask.Response:
    """Return the response that sends each value as a line of JSON, the lines of a burst together.

    ``bursts`` are read after the status is sent and outside Flask's request context: they must not raise. They are
    closed with the response, also if the client leaves.
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
