"""The arguments of the hook that authorises requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Caller(Protocol):
    """The sender of a request, identified by its token."""

    id: str
    """Eight hexadecimal digits, as in the log and the audit log."""

    name: str
    """The client's name for itself, which is not verified."""

    @property
    def token(self) -> str | None:
        """The id of its token; None for the owner."""


@dataclass(frozen=True)
class Subjects:
    """What a request is about: connections and categories by uuid, paths on the remote host, and a shell."""

    connections: frozenset[str] = frozenset()
    """The connections that the request names, also within data, and all connections below them."""

    categories: frozenset[str] = frozenset()
    paths: tuple[str | bytes, ...] = ()
    session: str | None = None
    """The name of the shell, if it has one."""
