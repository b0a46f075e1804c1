"""What a plugin is asked about that decides who may do what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Caller(Protocol):
    """Who sent a request: whom its token stands for."""

    id: str
    """Eight hexadecimal digits, as the log and the audit trail have them."""

    name: str
    """What the client calls itself; nobody has checked it."""

    @property
    def token(self) -> str | None:
        """The id of the token that it shows; None for the owner."""


@dataclass(frozen=True)
class Subjects:
    """What a request is about: connections and categories by uuid, paths on the far side, and a shell."""

    connections: frozenset[str] = frozenset()
    """Those that it names, also in the data of a connection, and all that they run over."""

    categories: frozenset[str] = frozenset()
    paths: tuple[str | bytes, ...] = ()
    session: str | None = None
    """The name of the shell, where it has one."""
