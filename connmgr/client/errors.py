"""The errors that a client raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn


class ClientError(Exception):
    """The daemon refused a request or failed to carry it out, or cannot be reached.

    ``code`` is the stable name of the cause (docs/API.md), ``status`` the HTTP status (0 without an answer),
    ``details`` all other members of the error, and ``retry_after`` the seconds to wait before the next attempt, or
    None.
    """

    def __init__(
        self,
        message: str,
        code: str,
        status: int,
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.details = details or {}
        self.retry_after = retry_after


class Unreachable(ClientError):
    """No answer came: the daemon does not run, or the connection to it broke.

    ``sent`` is false if the request certainly did not reach the daemon; repeating it is then harmless.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message, "unreachable", 0)
        self.sent = sent


class AccessDenied(ClientError):
    """The daemon rejects the credential or the token."""


class Answer(dict[str, Any]):
    """An object of an answer; a missing member shows that another program answered.

    :raises ClientError: from a look-up of a missing member.
    """

    def __missing__(self, name: str) -> NoReturn:
        raise lacking(name)


def lacking(name: str) -> ClientError:
    """Return the error about an answer without the member ``name``."""
    return ClientError(f"The answer lacks {name!r}, so it is not that of a daemon of this version.", "unknown", 200)


def from_member(error: Mapping[str, Any]) -> ClientError:
    """Return the error that the member ``error`` of a successful answer reports."""
    details = {name: value for name, value in error.items() if name not in {"message", "code"}}
    return ClientError(str(error["message"]), str(error["code"]), 200, details)


_DENIED = {"invalid_credential", "invalid_token", "not_authenticated", "token_expired", "token_revoked"}


def from_answer(status: int, content: bytes, retry_after: str | None = None) -> ClientError:
    """Return the error that an answer with ``status`` and the body ``content`` reports."""
    try:
        body = json.loads(content)
        members = dict(body.get("error", body))
        message, code = str(members.pop("message")), str(members.pop("code"))
    except (ValueError, AttributeError, KeyError, TypeError):
        return ClientError(f"The answer has status {status} and is not the daemon's.", "unknown", status)
    kind = AccessDenied if code in _DENIED else ClientError
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return kind(message, code, status, members, seconds)
