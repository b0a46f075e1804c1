"""Connections that are kept only in memory, while they are in use."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from connmgr.errors import TemporaryLimit
from connmgr.shares import refused
from connmgr.vault import way
from connmgr.vault.path import segment
from connmgr.vault.record import Connection
from connmgr.vault.tables import now
from connmgr.vault.wellknown import ALL_CONNECTIONS

MAX_TEMPORARY = 1000
"""Most temporary connections at a time."""

UNUSED_SECONDS = 60.0
"""A connection without a link is dropped after this time; a client must open a link within it."""


@dataclass
class _Kept:
    """A connection, and the time until which it is kept; None while a link to it is open, or is being opened.

    ``holders`` are the ids of the connections with such links: itself, and elevated ones over it.
    """

    connection: Connection
    fingerprint: bytes
    until: float | None
    share: str | None
    """Whose share it counts for: a token's id, or None for the owner's."""

    holders: set[str] = field(default_factory=set)


class TemporaryConnections:
    """Connections that are never written to the vault. They end with their links. Safe to use from several threads.

    They run over no other connection, only elevated ones run over them, they have no jobs, and no query finds them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def add(
        self,
        name: str,
        type: str,
        data: Mapping[str, Any],
        *,
        fingerprint: bytes,
        same: Callable[[Mapping[str, Any]], bool],
        is_visible: Callable[[str], bool] = lambda _: True,
        share: str | None = None,
    ) -> tuple[str, bool]:
        """Keep a connection; arguments and answer are those of :meth:`Connections.add`.

        One for whose id ``is_visible`` returns False counts as equivalent to none. ``share`` is the token for whose
        share it counts (:mod:`connmgr.shares`), or None for the owner's.
        :raises TemporaryLimit: there are too many, or the token has its share.
        """
        with self._lock:
            alive = self._alive()
            for id, one in alive.items():
                alike = (one.connection.type, one.fingerprint) == (type, fingerprint) and same(one.connection.data)
                if alike and is_visible(id):
                    one.until = None if one.until is None else _soon()
                    return id, False
            if len(alive) >= MAX_TEMPORARY:
                raise TemporaryLimit(f"There are {MAX_TEMPORARY:,} temporary connections: stop shells of some first.")
            if (why := refused(MAX_TEMPORARY, share, [one.share for one in alive.values()])) is not None:
                raise TemporaryLimit(f"Of {MAX_TEMPORARY:,} temporary connections {why}: stop shells of some first.")
            made = _made(name, type, data)
            self._kept = {**alive, made.id: _Kept(made, fingerprint, _soon(), share)}
            return made.id, True

    @property
    def ids(self) -> list[str]:
        """The ids of all that are kept."""
        return list(self._kept)

    def get(self, id: str) -> Connection | None:
        """Return the connection ``id``, or None if none is kept."""
        if not self._kept:
            return None
        with self._lock:
            one = self._kept.get(id)
            return None if one is None or _is_over(one) else one.connection

    def those_of(self, ids: Iterable[str]) -> dict[str, Connection]:
        """Return the connections among ``ids`` that are kept."""
        return {id: one for id in ids if (one := self.get(id)) is not None} if self._kept else {}

    def set_state(self, id: str, state: Mapping[str, Any]) -> None:
        """Store the state of a connection, if it is still kept."""
        with self._lock:
            if id in self._kept:
                self._kept[id].connection = replace(self._kept[id].connection, state=dict(state))

    def hold(self, id: str, holder: str) -> None:
        """Keep the connection until ``holder`` leaves it, because a link to ``holder`` is being opened."""
        with self._lock:
            one = self._kept.get(id)
            if one is not None and not _is_over(one):
                one.holders.add(holder)
                one.until = None

    def leave(self, id: str, holder: str) -> None:
        """Keep the connection for :data:`UNUSED_SECONDS` if nobody else holds it: ``holder`` has no link left."""
        with self._lock:
            one = self._kept.get(id)
            if one is not None and not _is_over(one):
                one.holders.discard(holder)
                one.until = None if one.holders else _soon()

    def remove(self, ids: Iterable[str]) -> None:
        """Forget the connections ``ids``."""
        with self._lock:
            for id in ids:
                self._kept.pop(id, None)

    def _alive(self) -> dict[str, _Kept]:
        return {id: one for id, one in self._kept.items() if not _is_over(one)}


def _made(name: str, type: str, data: Mapping[str, Any]) -> Connection:
    at = now()
    return Connection(
        id=str(uuid.uuid4()),
        name=name,
        path=(segment(name),),
        type=type,
        data=dict(data),
        category=ALL_CONNECTIONS,
        way=way.NOWHERE,
        created=at,
        last_used=at,
        last_modified=at,
        state={},
        cache={},
    )


def _soon() -> float:
    return time.monotonic() + UNUSED_SECONDS


def _is_over(one: _Kept) -> bool:
    return one.until is not None and time.monotonic() > one.until
