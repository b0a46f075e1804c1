"""Records each answered request in the log, in the audit log and in the counts."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

import flask

from connmgr.api.context import RequestContext, request_context
from connmgr.api.errors import as_error
from connmgr.api.services import Services, services
from connmgr.rights.approvals import DECIDERS

COMMAND = "command"
"""What :class:`connmgr.events.Events` counts for each request that has run a command."""

COMMANDS = frozenset({"/shell/exec", "/shell/broadcast", "/job/start"})

logger = logging.getLogger("connmgr.request")

REQUIRED = "required"
REFUSALS = (401, 403, 429)
ENDED = "ended"
"""The ``event`` of an entry about the end of a process that outlived the request that started it."""

_BEGUN = "begun"
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)


def announce(services: Services, context: RequestContext, *, reads: bool) -> None:
    """Record the beginning of this request, if the audit log is required.

    A request that only ``reads`` is recorded when it is answered.

    :raises connmgr.errors.AuditUnavailable: the log cannot be written.
    """
    if reads or services.settings.audit != REQUIRED or context.caller is None:
        return
    memory = context.continuation.memory
    if _BEGUN not in memory:
        facts = {name: value for name, value in _facts(context).items() if name != "status"}
        memory[_BEGUN] = services.audit.begin(facts | _further(context), _without_connection(context))
    context.begun = memory[_BEGUN]


def finish(response: flask.Response) -> flask.Response:
    """Record the request answered by ``response``; a streamed response, after it is sent."""
    context = request_context()
    response.headers["X-Request-Id"] = context.id
    record = recorder(context, response.status_code)
    if response.is_streamed:
        response.call_on_close(record)
    else:
        record()
    return response


def recorder(context: RequestContext, status: int) -> Callable[[], None]:
    """Return the function that records the request ``context``, answered with ``status``, when all of it is sent."""
    facts = {**_facts(context), "status": status, "code": None}
    # Every refusal gets an entry, except that of an unauthenticated client, which could fill the log.
    stranger = context.caller is None and not context.authority
    audited = not stranger and (context.audited or status in REFUSALS)
    return partial(_record, services(), facts, context.path if context.is_known else "", context, audited)


def end_recorder() -> Callable[..., None]:
    """Return a function that records the end of the process that this request starts.

    It is called with the exit code, None if that is unknown, and further details; in any thread that may block, also
    after the request was answered.
    """
    context, log = request_context(), services().audit
    facts = {name: value for name, value in _facts(context).items() if name != "status"}

    def record(exit_code: int | None, **details: Any) -> None:
        ended = {"event": ENDED, **details} | ({} if exit_code is None else {"exitCode": exit_code})
        log.record(facts | _further(context), {}, ended)

    return record


def _facts(context: RequestContext) -> dict[str, Any]:
    environ, caller = context.environ, context.caller
    return {
        "id": context.id,
        "client": caller.name if caller else context.client,
        "session": caller.id if caller else None,
        "method": environ["REQUEST_METHOD"],
        "path": context.path,
        "connection": context.about.get("connection") or context.details.pop("connection", None),
        "status": None,
    }


def _further(context: RequestContext) -> dict[str, Any]:
    """Return the facts for the audit log that are not in the log."""
    further = {"action": context.action, **context.authority}
    decider = context.continuation.memory.get(DECIDERS, {}).get(further.get("approval"))
    return further | ({} if decider is None else {"decidedBy": decider})


def _without_connection(context: RequestContext) -> dict[str, Any]:
    return {name: value for name, value in context.about.items() if name != "connection"}


def _record(services: Services, facts: dict[str, Any], rule: str, context: RequestContext, audited: bool) -> None:
    try:
        # The code of a streamed answer.
        context.resources.close()
    except BaseException as error:  # noqa: BLE001
        # A plugin may raise any exception, and the token must not stay in use.
        context.code = as_error(error, context).code
    facts["code"] = context.code
    seconds = time.perf_counter() - context.began
    if context.caller is not None:
        services.tokens.end(context.caller)
    if context.continuation.suspended is not None:
        return
    facts["ms"] = round(seconds * 1000, 3)
    services.counts.add(rule, facts["status"], seconds)
    if rule in COMMANDS and facts["status"] == HTTPStatus.OK:
        services.events.count(COMMAND)
    if audited:
        entry = facts | _further(context)
        services.audit.record(entry, _without_connection(context), context.details, context.begun)
        for what, details in context.parts:
            services.audit.record({**entry, **what}, {}, details, context.begun)
    if logger.isEnabledFor(logging.INFO):
        # Not by the logger's methods, which search the stack for the caller; that would take longer than all the rest.
        line = logging.LogRecord(logger.name, logging.INFO, __file__, 0, Line(facts), None, None)
        line.facts = facts
        logger.handle(line)


class Line:
    """A request's facts, formatted as one line of text when printed.

    A client's words are quoted and in ASCII, so that they cannot imitate other parts of the line.
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
