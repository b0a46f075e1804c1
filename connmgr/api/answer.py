"""Answers in JSON."""

from __future__ import annotations

import json
from typing import Any

import flask

# Made once: making it takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def as_json(value: Any, status: int = 200) -> flask.Response:
    """Return the response that has ``value`` for its body, and a newline, as a terminal wants one."""
    return flask.Response(encoded(value) + "\n", status=status, mimetype="application/json")


def encoded(value: Any) -> str:
    """Return ``value`` as JSON."""
    return _ENCODER.encode(value)
