"""``/token``, ``/approval``, ``/command`` and ``/audit``; answers are dicts as in docs/API.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from connmgr.client.endpoints import Group
from connmgr.client.results import to_time


class Rights(NamedTuple):
    """The rights of a caller: ``actions``, and ``commands``, which is ``text``, ``argv`` or None.

    ``id``, ``name`` and ``expires`` are those of its token, None for the owner.
    """

    id: str | None
    name: str | None
    expires: datetime | None
    scopes: tuple[str, ...]
    actions: frozenset[str]
    commands: str | None


class Tokens(Group):
    """``/token``; ``expires`` is in seconds from now, or a time with its zone."""

    def create(self, name: str, expires: float | datetime, scopes: Sequence[str], **more: Any) -> dict[str, Any]:
        """Create a token and describe it, with its text as ``token``; ``more`` are further members of the request."""
        return dict(self._post("/token/create", name=name, expires=_written(expires), scopes=list(scopes), **more))

    def info(self) -> Rights:
        """Return the rights of this client's own token."""
        told = self._post("/token/info")
        expires = None if told["expires"] is None else to_time(told["expires"])
        actions, scopes = frozenset(told["actions"]), tuple(told["scopes"])
        return Rights(told["id"], told["name"], expires, scopes, actions, told["commands"])

    def query(self) -> list[dict[str, Any]]:
        """Describe all tokens."""
        return list(self._post("/token/query")["tokens"])

    def check(self, path: str, request: Mapping[str, Any], id: str | None = None) -> dict[str, Any]:
        """Return the decision about a request to ``path`` with the token ``id``, by default this client's own."""
        more = {} if id is None else {"id": id}
        return dict(self._post("/token/check", path=path, request=dict(request), **more))

    def renew(self, id: str, expires: float | datetime) -> dict[str, Any]:
        """Change the time when a token expires, and describe it."""
        return dict(self._post("/token/renew", id=id, expires=_written(expires)))

    def lend(self, id: str, seconds: float | None = None, *, end: bool = False) -> dict[str, Any]:
        """Lend a token the use of the secrets that this session has unlocked, or end that, and describe the token.

        ``seconds`` is how long, by default as long as the token does not expire.
        """
        more = {} if seconds is None else {"seconds": seconds}
        return dict(self._post("/token/lend", id=id, end=end, **more))

    def revoke(self, id: str) -> None:
        """Make a token invalid for ever, and end what it runs."""
        self._post("/token/revoke", id=id)


class Approvals(Group):
    """``/approval``."""

    def query(self, states: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Describe the approvals that are in one of ``states``."""
        more = {} if states is None else {"states": list(states)}
        return list(self._post("/approval/query", **more)["approvals"])

    def decide(self, approval: str, decision: str, seconds: float | None = None) -> dict[str, Any]:
        """Decide ``once``, ``grant`` (for ``seconds``) or ``deny``, and describe the approval."""
        more = {} if seconds is None else {"seconds": seconds}
        return dict(self._post("/approval/decide", approval=approval, decision=decision, **more))


class SavedCommands(Group):
    """``/command``."""

    def save(self, name: str, argv: Sequence[Any], **more: Any) -> None:
        """Save a command; ``more`` are further members of the request: ``parameters``, ``description``, ``replace``."""
        self._post("/command/save", name=name, argv=list(argv), **more)

    def query(self) -> list[dict[str, Any]]:
        """Describe the saved commands."""
        return list(self._post("/command/query")["commands"])

    def remove(self, name: str) -> None:
        """Remove a saved command."""
        self._post("/command/remove", name=name)


class AuditLog(Group):
    """``/audit``."""

    def query(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        """Yield the matching entries, newest first; ``wanted`` are members of the request."""
        before = wanted.pop("before", None)
        while True:
            answer = self._post("/audit/query", **wanted, **({} if before is None else {"before": before}))
            yield from answer["entries"]
            before = answer.get("next")
            if before is None:
                return

    def verify(self) -> dict[str, Any]:
        """Return whether the audit logs are intact, and which ones the vault knows."""
        return dict(self._post("/audit/verify"))

    def forget(self, log: str) -> None:
        """Have the vault forget a missing log, by its id (``trail`` in the answer of :meth:`verify`)."""
        self._post("/audit/forget", trail=log)


AuditTrail = AuditLog
"""The former name."""


def _written(expires: float | datetime) -> float | str:
    return expires.isoformat() if isinstance(expires, datetime) else expires
