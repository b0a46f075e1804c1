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

REQUIRED = "required"
REFUSALS = (401, 403, 429)
LONGEST_PATH = 200
_BEGUN = "begun"
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)


def announce(*, reads: bool) -> None:
    """Have the audit trail say that this request begins, where nothing may be done that it does not have.

    What only ``reads`` is recorded when it is answered.

    :raises connmgr.errors.AuditUnavailable: it cannot be written.
    """
    known, kept = account(), turns().kept
    if reads or services().settings.audit != REQUIRED or known.caller is None:
        return
    if _BEGUN not in kept:
        facts = {name: value for name, value in _facts(known).items() if name != "status"}
        kept[_BEGUN] = services().audit.begin(facts | _further(known), _without_connection(known))
    known.begun = kept[_BEGUN]


def finish(response: flask.Response) -> flask.Response:
    """Close the account of the request that ``response`` answers, once it is sent where it is streamed."""
    known, request = account(), flask.request
    response.headers["X-Request-Id"] = known.id
    facts = {**_facts(known), "status": response.status_code, "code": None}
    rule = request.url_rule.rule if request.url_rule else ""
    # A refusal has an entry, whatever was asked for. A stranger, who could fill the trail, has none.
    stranger = known.caller is None and not known.authority
    audited = not stranger and (known.audited or response.status_code in REFUSALS)
    record = partial(_record, services(), facts, rule, known, audited, turns().parked is not None)
    if response.is_streamed:
        response.call_on_close(record)
    else:
        record()
    return response


def _facts(known: Account) -> dict[str, Any]:
    request, caller = flask.request, known.caller
    return {
        "id": known.id,
        "client": caller.name if caller else known.client,
        "session": caller.id if caller else None,
        "method": request.method,
        "path": request.url_rule.rule if request.url_rule else request.path[:LONGEST_PATH],
        "connection": known.about.get("connection") or known.details.pop("connection", None),
        "status": None,
    }


def _further(known: Account) -> dict[str, Any]:
    """Return the facts that the audit trail has beyond the log."""
    return {"action": known.action, **known.authority}


def _without_connection(known: Account) -> dict[str, Any]:
    return {name: value for name, value in known.about.items() if name != "connection"}


def _record(services: Services, facts: dict[str, Any], rule: str, known: Account, audited: bool, parked: bool) -> None:
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
    if audited:
        told = facts | _further(known)
        services.audit.record(told, _without_connection(known), known.details, known.begun)
        for what, details in known.parts:
            services.audit.record({**told, **what}, {}, details, known.begun)
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
