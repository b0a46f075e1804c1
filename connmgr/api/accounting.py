"""What is kept of each request that was answered: a line in the log, an entry of the audit trail, and counts."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import flask

from connmgr.api.services import services

if TYPE_CHECKING:
    from connmgr.api.services import Services

logger = logging.getLogger("connmgr.request")

AUDITED_GROUPS = {"shell", "fs", "secret", "vault"}
AUDITED_PATHS = {
    "/daemon/stop",
    *(f"/{group}/{verb}" for group in ("connection", "store") for verb in ("add", "update", "remove", "refresh")),
}
"""Further requests with an entry in the audit trail."""

SUBJECTS = ("connections", "name", "path", "source", "target", "user", "command")
"""The fields of a request that tell what it was about; all others may hold secrets."""

LONGEST_PATH = 200
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)


def begin() -> None:
    """Take note that a request begins."""
    flask.g.began = time.perf_counter()
    flask.g.id = secrets.token_hex(4)
    flask.g.request = {}
    flask.g.details = {}


def detail(**details: Any) -> None:
    """Add to what is kept of this request: names and numbers, never what it carried."""
    flask.g.details.update(details)


def finish(response: flask.Response) -> flask.Response:
    """Account for the request that ``response`` answers, once it is sent where it is streamed."""
    response.headers["X-Request-Id"] = flask.g.id
    request = flask.request
    rule = request.url_rule.rule if request.url_rule else ""
    caller = flask.g.get("caller")
    facts = {
        "id": flask.g.id,
        "client": caller.name if caller else flask.g.get("client"),
        "session": caller.id if caller else None,
        "method": request.method,
        "path": rule or request.path[:LONGEST_PATH],
        "connection": flask.g.request.get("connection") or flask.g.details.pop("connection", None),
        "status": response.status_code,
        "code": flask.g.get("code"),
    }
    audited = caller is not None and (request.blueprint in AUDITED_GROUPS or rule in AUDITED_PATHS)
    about = {key: flask.g.request[key] for key in SUBJECTS if key in flask.g.request} if audited else None
    record = partial(_record, services(), facts, rule, about, flask.g.details, flask.g.began)
    if response.is_streamed:
        response.call_on_close(record)
    else:
        record()
    return response


def _record(
    services: Services,
    facts: dict[str, Any],
    rule: str,
    about: Mapping[str, Any] | None,
    details: Mapping[str, Any],
    began: float,
) -> None:
    seconds = time.perf_counter() - began
    facts["ms"] = round(seconds * 1000, 3)
    services.metrics.count(rule, facts["status"], seconds)
    if about is not None:
        services.audit.record(facts, about, details)
    if logger.isEnabledFor(logging.INFO):
        # By hand, because the logger would look through the stack for the caller, which takes longer than all the rest.
        line = logging.LogRecord(logger.name, logging.INFO, __file__, 0, Line(facts), None, None)
        line.facts = facts
        logger.handle(line)


class Line:
    """A request's facts, as one line of text for whoever wants it as such.

    A client's words stand in quotes and in ASCII, and pass for nothing else.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts

    def __str__(self) -> str:
        facts = self._facts
        rest = " ".join(
            f"{name}={_word(facts[name])}"
            for name in ("id", "session", "client", "connection", "code")
            if facts[name] is not None
        )
        return f"{_word(facts['method'])} {_word(facts['path'])} {facts['status']} {facts['ms']:.1f} ms {rest}"


def _word(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value)
