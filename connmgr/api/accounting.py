"""What is kept of each request that was answered: a line in the log, an entry of the audit trail, and counts."""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import flask

from connmgr.api.services import services

if TYPE_CHECKING:
    from connmgr.api.auth import Caller
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


@dataclass
class Account:
    """What is known of a request while it is answered: ``details`` are names and numbers, never what it carried."""

    id: str
    began: float
    request: Mapping[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    client: str | None = None
    caller: Caller | None = None
    code: str | None = None


def begin() -> None:
    """Open the account of a request."""
    # No secret; and random bytes of the system's would cost a switch of threads.
    identifier = f"{random.getrandbits(32):08x}"
    flask.g.account = Account(identifier, time.perf_counter())


def account() -> Account:
    """Return the account of the request that is being answered."""
    found: Account = flask.g.account
    return found


def detail(**details: Any) -> None:
    """Add to the details of this request."""
    account().details.update(details)


def finish(response: flask.Response) -> flask.Response:
    """Close the account of the request that ``response`` answers, once it is sent where it is streamed."""
    known, request = account(), flask.request._get_current_object()  # type: ignore[attr-defined]
    response.headers["X-Request-Id"] = known.id
    rule = request.url_rule.rule if request.url_rule else ""
    caller = known.caller
    facts = {
        "id": known.id,
        "client": caller.name if caller else known.client,
        "session": caller.id if caller else None,
        "method": request.method,
        "path": rule or request.path[:LONGEST_PATH],
        "connection": known.request.get("connection") or known.details.pop("connection", None),
        "status": response.status_code,
        "code": known.code,
    }
    audited = caller is not None and (request.blueprint in AUDITED_GROUPS or rule in AUDITED_PATHS)
    about = {key: known.request[key] for key in SUBJECTS if key in known.request} if audited else None
    record = partial(_record, services(), facts, rule, about, known.details, known.began)
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
