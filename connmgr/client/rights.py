"""``/token``, ``/approval``, ``/command`` and ``/audit``; answers are dicts as in docs/API.md.

:func:`described` shows the request of an approval to the person who decides.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from connmgr.client.group import Group
from connmgr.contract.approval import ApprovalDecideRequest, ApprovalQueryRequest, Verdict
from connmgr.contract.audit import AuditForgetRequest, AuditRecordRequest, AuditRecordResponse
from connmgr.contract.command import CommandNameRequest, CommandSaveResponse
from connmgr.contract.message import from_json
from connmgr.contract.token import (
    TokenCheckRequest,
    TokenLendRequest,
    TokenRenewRequest,
    TokenRequest,
)
from connmgr.contract.token import TokenOwnResponse as Rights
from connmgr.printable import visible


class Tokens(Group):
    """``/token``; ``expires`` is in seconds from now, or a time with its zone."""

    def create(self, name: str, expires: float | datetime, scopes: Sequence[str], **more: Any) -> dict[str, Any]:
        """Create a token and describe it, with its text as ``token``; ``more`` are further members of the request."""
        return dict(self._http.post("/token/create", name=name, expires=_expiry(expires), scopes=list(scopes), **more))

    def info(self) -> Rights:
        """Return the rights of this client's own token."""
        return self._ask("/token/info", None, Rights)

    def query(self) -> list[dict[str, Any]]:
        """Describe all tokens."""
        return list(self._http.post("/token/query")["tokens"])

    def check(self, path: str, request: Mapping[str, Any], id: str | None = None) -> dict[str, Any]:
        """Return the decision about a request to ``path`` with the token ``id``, by default this client's own."""
        return dict(self._tell("/token/check", TokenCheckRequest(path=path, request=dict(request), id=id)))

    def renew(self, id: str, expires: float | datetime) -> dict[str, Any]:
        """Change the time when a token expires, and describe it."""
        # The field takes seconds, too.
        return dict(self._tell("/token/renew", TokenRenewRequest(id=id, expires=cast("datetime", expires))))

    def lend(self, id: str, seconds: float | None = None, *, end: bool = False) -> dict[str, Any]:
        """Lend a token the use of the secrets that this session has unlocked, or end that, and describe the token.

        ``seconds`` is how long, by default as long as the token does not expire.
        """
        request = TokenLendRequest(id=id, seconds=seconds, end=end)
        return dict(self._tell("/token/lend", request))

    def revoke(self, id: str) -> None:
        """Make a token invalid for ever, and end what it runs."""
        self._tell("/token/revoke", TokenRequest(id=id))


class Approvals(Group):
    """``/approval``."""

    def query(self, states: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Describe the approvals that are in one of ``states``."""
        request = None if states is None else ApprovalQueryRequest(states=list(states))
        return list(self._tell("/approval/query", request)["approvals"])

    def decide(self, approval: str, decision: str, seconds: float | None = None) -> dict[str, Any]:
        """Decide ``once``, ``grant`` or ``pattern`` (for ``seconds``) or ``deny``, and describe the approval."""
        verdict = cast("Verdict", decision)
        request = ApprovalDecideRequest(approval=approval, decision=verdict, seconds=cast("int | None", seconds))
        return dict(self._tell("/approval/decide", request))


class SavedCommands(Group):
    """``/command``."""

    def save(self, name: str, argv: Sequence[Any], **more: Any) -> str | None:
        """Save a command, and return why no rule can allow it to a token, or None.

        ``more`` are further members of the request: ``parameters``, ``description``, ``replace``.
        """
        answer = self._http.post("/command/save", name=name, argv=list(argv), **more)
        return from_json(CommandSaveResponse, answer).warning

    def query(self) -> list[dict[str, Any]]:
        """Describe the saved commands."""
        return list(self._http.post("/command/query")["commands"])

    def remove(self, name: str) -> None:
        """Remove a saved command."""
        self._tell("/command/remove", CommandNameRequest(name=name))


class AuditLog(Group):
    """``/audit``."""

    def query(self, **members: Any) -> Iterator[dict[str, Any]]:
        """Yield the matching entries, newest first; ``members`` are members of the request."""
        before = members.pop("before", None)
        while True:
            answer = self._http.post("/audit/query", **members, **({} if before is None else {"before": before}))
            yield from answer["entries"]
            before = answer.get("next")
            if before is None:
                return

    def record(
        self, token: str, *, since: datetime | None = None, until: datetime | None = None, outputs: bool = True
    ) -> AuditRecordResponse:
        """Return what a token has done, step by step, with what jobs and recorded terminals have printed."""
        request = AuditRecordRequest(token=token, since=since, until=until, outputs=outputs)
        return self._ask("/audit/record", request, AuditRecordResponse)

    def verify(self) -> dict[str, Any]:
        """Return whether the audit logs are intact, and which ones the vault knows."""
        return dict(self._http.post("/audit/verify"))

    def forget(self, log: str) -> None:
        """Have the vault forget a missing log, by its id (``trail`` in the answer of :meth:`verify`)."""
        self._tell("/audit/forget", AuditForgetRequest(trail=log))


AuditTrail = AuditLog
"""The former name."""


def _expiry(expires: float | datetime) -> float | str:
    return expires.isoformat() if isinstance(expires, datetime) else expires


def described(approval: Mapping[str, Any], when: str) -> Iterator[str]:
    """Yield the lines that show a whole approval; the first has the token's name and ``when``."""
    request = dict(approval["asked"])
    yield f"{quoted(approval['tokenName'])} asks{when}:"
    yield f"  {request.pop('action', 'something')} on {', '.join(map(quoted, request.pop('names', [])))}"
    grounds = {ground.get("connection"): ground for ground in request.pop("on", [])}
    for id in request.pop("connections", []):
        yield f"    {visible(id)}"
        yield from _ground(grounds.get(id))
    if "terminal" in request:
        yield f"  terminal {'yes' if request.pop('terminal') else 'no'}"
    for change in request.pop("moved", []):
        yield f"  moved since it was asked before: {visible(change)}"
    for member, value in request.items():
        yield f"  {visible(member)}"
        yield from (f"    {line}" for line in _lines(value))
    if pattern := approval.get("pattern"):
        words, names = " ".join(pattern["words"]), ", ".join(map(quoted, pattern["names"]))
        yield f"  or as a rule for {pattern['seconds'] // 60} minutes: {visible(words)} on {names}"
    # Of the whole approval: a letter that looks like another may stand in a name as well as in the command.
    yield from beyond_ascii(json.dumps(approval, ensure_ascii=False))


def _ground(ground: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the lines that show where a request runs on one connection."""
    if ground is None:
        return
    hosts, user = ground.get("hosts") or [], ground.get("user")
    yield f"    host {', then '.join(map(quoted, hosts)) or 'the machine of the daemon'}"
    yield f"    user {quoted(user) if user else 'of the login there' if hosts else 'of the daemon'}"
    if "directory" in ground:
        directory = ground["directory"]
        yield f"    directory {quoted(directory) if directory else 'where a new shell starts'}"
    for name, value in (ground.get("variables") or {}).items():
        yield f"    {visible(name)} of the shell {'is no longer exported' if value is None else quoted(value)}"
    if others := ground.get("otherVariables"):
        yield f"    further variables of the shell {', '.join(map(visible, others))}"


def beyond_ascii(text: str) -> Iterator[str]:
    """Yield lines that name the characters of ``text`` beyond ASCII, which may look like others."""
    beyond = sorted({c for c in text if not c.isascii()})
    if beyond:
        yield "  characters beyond ASCII, which may look like others"
        yield from (f"    U+{ord(c):04X} {unicodedata.name(c, 'without a name')}" for c in beyond)


def quoted(value: object) -> str:
    """Return a value as JSON, with escapes for characters that control a terminal or reorder text."""
    return visible(json.dumps(value, ensure_ascii=False))


def _lines(value: object) -> Iterator[str]:
    """Yield the lines of one member, each word quoted."""
    if isinstance(value, Mapping):
        yield from (f"{quoted(str(name))} = {quoted(item)}" for name, item in value.items())
    elif isinstance(value, list):
        yield from map(quoted, value)
    elif isinstance(value, str) and "\n" in value:
        yield from map(quoted, value.splitlines(keepends=True))
    else:
        yield quoted(value)
