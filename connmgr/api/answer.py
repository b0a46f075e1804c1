"""Answers in JSON."""

from __future__ import annotations

import json
from typing import Any

import flask

# Made once: making it takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def as_json(value: Any, status: int = 200) -> flask.Response:
    """Return the response that has ``value`` for its body, and a newline, as a terminal wants one."""
    return flask.Response(_ENCODER.encode(value) + "\n", status=status, mimetype="application/json")
