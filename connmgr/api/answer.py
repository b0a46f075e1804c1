"""Answers in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import flask

LINES = "application/x-ndjson"
"""The media type of values that come one a line."""

# Made once: making it takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def as_json(value: Any, status: int = 200) -> flask.Response:
    """Return the response that has ``value`` for its body, and a newline, as a terminal wants one."""
    return flask.Response(encoded(value) + "\n", status=status, mimetype="application/json")


def as_lines(values: Iterable[Any]) -> flask.Response:
    """Return the response that sends each of ``values`` as a line of JSON, as soon as it comes.

    The lines are encoded while they are sent, outside of the request: ``values`` need no context of Flask's, and raise
    nothing, since the status is sent already. A generator is closed with the response, also if the client leaves.
    """
    response = flask.Response(_lines(values), mimetype=LINES)
    close = getattr(values, "close", None)
    if close is not None:
        response.call_on_close(close)
    return response


def _lines(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        yield encoded(value) + "\n"


def encoded(value: Any) -> str:
    """Return ``value`` as JSON."""
    return _ENCODER.encode(value)
