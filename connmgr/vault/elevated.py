"""Elevated connections: derived from a stored or temporary one, to run programs as another user by sudo.

Nothing of an elevated connection is stored. Its id has all that it is derived from: the connection that it runs over,
the user, and who asked for it, so that nobody uses the root shell that somebody else's password has opened. The
password that sudo asks for is a document of the vault, of the connection below or of a category above that one; or it
was given with a request, and is then kept in memory, sealed, while the elevated connection is in use.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from connmgr.errors import UnknownConnection
from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import category_rows
from connmgr.vault.database import Database
from connmgr.vault.documents import Document, Documents
from connmgr.vault.path import segment
from connmgr.vault.record import Connection
from connmgr.vault.tables import document

TYPE = "shellEnvironment"
"""The bundled connection type by which they run."""

KIND = "sudo-password"
"""The kind of the documents; the key of each is the id of its connection or category."""

OWNER = "owner"
MAX_USER = 64
MAX_GIVEN = 1000
"""Passwords in memory from which on the oldest unused one is forgotten."""

UNUSED_SECONDS = 60.0
"""A password given with a request is forgotten this time after the last link that it opened."""

SEPARATOR = "+"
"""Stands in no uuid; a user's name may contain it."""


class Elevation(NamedTuple):
    """What an elevated connection is derived from; ``holder`` is the id of a token, or :data:`OWNER`."""

    base: str
    holder: str
    user: str

    @property
    def id(self) -> str:
        """The id of the elevated connection."""
        return SEPARATOR.join(self)


def elevation_of(id: str) -> Elevation | None:
    """Return what the connection ``id`` is derived from; None for one that is not elevated."""
    parts = id.split(SEPARATOR, 2) if SEPARATOR in id else []
    return Elevation(*parts) if len(parts) == 3 and all(parts) else None


def base_of(id: str) -> str:
    """Return the id of the connection that an elevated one runs over, or ``id`` itself."""
    elevation = elevation_of(id)
    return id if elevation is None else elevation.base


def with_elevation(base: str, elevation: str) -> str:
    """Return the id of a connection by its parts: that of the one below, and the rest, which may be empty."""
    return f"{base}{SEPARATOR}{elevation}" if elevation else base


class SudoPassword(NamedTuple):
    """A stored password, sealed; ``of`` is the id of its connection or category."""

    of: str
    sealed: Mapping[str, Any]


@dataclass
class _Given:
    """A sealed password, and the time until which it is kept; None while a link that uses it is open.

    It serves only while the connection that it was given for leads where it led then: ``way``.
    """

    sealed: Mapping[str, Any]
    way: str
    until: float | None

    @property
    def is_over(self) -> bool:
        return self.until is not None and time.monotonic() > self.until


class SudoPasswords:
    """The passwords that sudo asks for, stored and given. Safe to use from several threads.

    Methods that read the vault raise :class:`connmgr.errors.VaultUnavailable` and
    :class:`connmgr.errors.IntegrityError` as those of :class:`Documents`.
    """

    def __init__(self, database: Database, key: VaultKey) -> None:
        self._database = database
        self._key = key
        self._documents = Documents(database, key, KIND)
        self._lock = threading.Lock()
        self._given: dict[str, _Given] = {}
        self._used: set[str] = set()

    def store(self, of: str, sealed: Mapping[str, Any] | None) -> None:
        """Store the password of a connection or category, in place of any other; None removes it."""
        before = self._documents.by_key(of)
        if sealed is None:
            self._documents.remove([before.id] if before else [])
        elif before is None:
            self._documents.add(Document(key=of, body={"sealed": dict(sealed)}))
        else:
            self._documents.change(before.id, lambda one: replace(one, body={"sealed": dict(sealed)}))

    def stored(self, connection: str | None, category: str) -> SudoPassword | None:
        """Return the password of ``connection``, else that of the nearest of ``category`` and those above it."""
        for of in (*([connection] if connection else []), *self._upwards(category)):
            found = self._documents.by_key(of)
            if found is not None:
                return SudoPassword(of, found.body["sealed"])
        return None

    def over_each(self, connections: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """Return as :meth:`over_each_within` does, in a transaction of its own."""
        return self._database.read(lambda tx: self.over_each_within(tx, connections))

    def over_each_within(self, tx: sa.Connection, connections: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """Return the sealed passwords of ``connections``, which are given with the ids of their categories.

        Each is the one that :meth:`stored` returns; connections without one are left out.
        """
        stored = {one.key: one.body["sealed"] for one in self._documents.all_within(tx)}
        if not stored:
            return {}
        above = {category: self._upwards_within(tx, category) for category in set(connections.values())}
        places = {id: [of for of in (id, *above[category]) if of in stored] for id, category in connections.items()}
        return {id: stored[found[0]] for id, found in places.items() if found}

    def give(self, id: str, sealed: Mapping[str, Any], way: str, *, same: Callable[[Mapping[str, Any]], bool]) -> None:
        """Keep a password for the elevated connection ``id`` in memory; the :func:`same` one stays as it is.

        ``way`` is the digest of what it runs over. If there are too many, one of the holder with the most is forgotten.
        """
        with self._lock:
            self._given = {one: kept for one, kept in self._given.items() if not kept.is_over}
            kept = self._given.get(id)
            if kept is not None and kept.way == way and same(kept.sealed):
                return
            unused = [one for one, each in self._given.items() if each.until is not None]
            if kept is None and len(self._given) >= MAX_GIVEN and unused:
                holders = Counter(map(_holder_of, unused))
                del self._given[next(one for one in unused if holders[_holder_of(one)] == max(holders.values()))]
            self._given[id] = _Given(sealed, way, None if id in self._used else time.monotonic() + UNUSED_SECONDS)

    def given(self, id: str, way: str) -> Mapping[str, Any] | None:
        """Return the password that was given for the elevated connection ``id`` on this ``way``, if it is kept."""
        with self._lock:
            kept = self._given.get(id)
            return None if kept is None or kept.is_over or kept.way != way else kept.sealed

    def hold(self, id: str) -> None:
        """Keep what was given for ``id`` until :meth:`leave`, because a link is being opened."""
        with self._lock:
            self._used.add(id)
            if id in self._given and not self._given[id].is_over:
                self._given[id].until = None

    def leave(self, id: str) -> None:
        """Keep what was given for ``id`` for :data:`UNUSED_SECONDS`, because it has no link left."""
        with self._lock:
            self._used.discard(id)
            if id in self._given and not self._given[id].is_over:
                self._given[id].until = time.monotonic() + UNUSED_SECONDS

    def in_use(self) -> list[str]:
        """Return the elevated connections that have a link."""
        with self._lock:
            return list(self._used)

    def over(self, connections: Collection[str]) -> list[str]:
        """Return the elevated connections in use that run over one of ``connections``."""
        with self._lock:
            return [id for id in self._used if base_of(id) in connections]

    def _upwards(self, category: str) -> list[str]:
        return self._database.read(lambda tx: self._upwards_within(tx, category))

    def _upwards_within(self, tx: sa.Connection, category: str) -> list[str]:
        found: list[str] = []
        at: str | None = category
        while at is not None and at not in found:
            found.append(at)
            at = category_rows.load(tx, [at], self._key)[at].parent
        return found


def _holder_of(id: str) -> str:
    elevation = elevation_of(id)
    return OWNER if elevation is None else elevation.holder


def derived(elevation: Elevation, base: Connection, way: str, password: Mapping[str, Any] | None) -> Connection:
    """Return the elevated connection over ``base``, which its ``way`` ties to it.

    :raises UnknownConnection: ``base`` is itself an elevated connection.
    """
    if elevation_of(base.id) is not None:
        raise UnknownConnection(elevation.id)
    return Connection(
        id=elevation.id,
        name=elevation.user,
        path=(*base.path, segment(elevation.user)),
        type=TYPE,
        data={
            "host": base.id,
            "elevated": True,
            "method": "sudo",
            "user": elevation.user,
            "password": None if password is None else dict(password),
            "shell": None,
            "commands": None,
        },
        category=base.category,
        way=way,
        created=base.created,
        last_used=base.last_used,
        last_modified=base.last_modified,
        state={},
        cache={},
    )


def forget_within(tx: sa.Connection, ids: Iterable[str]) -> None:
    """Remove the passwords of connections or categories that are being removed."""
    for id in ids:
        tx.execute(document.delete().where(document.c.kind == KIND, document.c.key == id))
