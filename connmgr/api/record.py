"""Keeps of each request that was answered a line in the log, an entry of the audit trail, and counts."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import flask

from connmgr.api.account import Account, account
from connmgr.api.errors import as_error
from connmgr.api.parking import turns
from connmgr.api.services import Services, services

logger = logging.getLogger("connmgr.request")

LONGEST_PATH = 200
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)


def finish(response: flask.Response) -> flask.Response:
    """Close the account of the request that ``response`` answers, once it is sent where it is streamed."""
    known, request = account(), flask.request
    response.headers["X-Request-Id"] = known.id
    rule = request.url_rule.rule if request.url_rule else ""
    caller = known.caller
    facts = {
        "id": known.id,
        "client": caller.name if caller else known.client,
        "session": caller.id if caller else None,
        "method": request.method,
        "path": rule or request.path[:LONGEST_PATH],
        "connection": known.about.get("connection") or known.details.pop("connection", None),
        "status": response.status_code,
        "code": None,
    }
    about = known.about if known.audited and caller is not None else None
    record = partial(_record, services(), facts, rule, about, known, turns().parked is not None)
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
    known: Account,
    parked: bool,
) -> None:
    try:
        # Of an answer that is streamed.
        known.held.close()
    except BaseException as error:  # noqa: BLE001
        # A plugin may raise anything, and the token must not stay in use.
        known.code = as_error(error, known.id).code
    facts["code"] = known.code
    seconds = time.perf_counter() - known.began
    if known.caller is not None:
        services.tokens.end(known.caller)
    if parked:
        return
    facts["ms"] = round(seconds * 1000, 3)
    services.counts.add(rule, facts["status"], seconds)
    if about is not None:
        about = {name: value for name, value in about.items() if name != "connection"}
        services.audit.record(facts, about, known.details)
        for what, details in known.parts:
            services.audit.record({**facts, **what}, {}, details)
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
