"""What a client raises."""

from __future__ import annotations

import json
from typing import Any, NoReturn


class ClientError(Exception):
    """The daemon refused a request or could not carry it out, or cannot be reached.

    ``code`` is the stable name of the cause as docs/API.md lists them, ``status`` the HTTP status (0 where no answer
    came), ``details`` holds all further members of the error, and ``retry_after`` the seconds after which an
    unavailable daemon wants to be asked again, or None.
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

    ``sent`` is false where the request surely did not reach it, so that it may be repeated without harm.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message, "unreachable", 0)
        self.sent = sent


class AccessDenied(ClientError):
    """The daemon does not accept the credential, or no longer the token."""


class Answer(dict[str, Any]):
    """An object of an answer; a member that it lacks shows that it is not the daemon's.

    :raises ClientError: from a look-up of a member that is not there.
    """

    def __missing__(self, name: str) -> NoReturn:
        raise ClientError(f"An answer without {name!r}, which is not a daemon's of this version.", "unknown", 200)


_DENIED = {"invalid_credential", "invalid_token", "not_authenticated"}


def from_answer(status: int, content: bytes, retry_after: str | None = None) -> ClientError:
    """Return the error that the body ``content`` of an answer with ``status`` tells of."""
    try:
        body = json.loads(content)
        shown = dict(body.get("error", body))
        message, code = str(shown.pop("message")), str(shown.pop("code"))
    except (ValueError, AttributeError, KeyError, TypeError):
        return ClientError(f"An answer with status {status} that is not the daemon's.", "unknown", status)
    kind = AccessDenied if code in _DENIED else ClientError
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return kind(message, code, status, shown, seconds)
