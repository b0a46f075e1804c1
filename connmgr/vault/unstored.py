"""Connections without a row: temporary ones, which are kept in memory, and elevated ones, which are derived.

Nothing of an elevated connection is stored. It is derived from its id: the connection that it runs over, the user, and
the holder, which is the caller that requested it, so that nobody uses the root shell that another caller's password has
opened. The password for sudo is a document of the vault, for the connection below or for a category above that one. A
password that came with a request is kept in memory, sealed, while the elevated connection is in use.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from connmgr.errors import TemporaryLimit, UnknownConnection
from connmgr.secrets.vault_key import VaultKey
from connmgr.shares import refused
from connmgr.vault import category_rows, dependencies
from connmgr.vault.connection_rows import Connection
from connmgr.vault.database import Database
from connmgr.vault.documents import Document, Documents
from connmgr.vault.names import ALL_CONNECTIONS, OWNER, Elevation, base_of, check_name, elevation_of, segment
from connmgr.vault.schema import document, now

MAX_TEMPORARY = 1000
"""Most temporary connections at a time."""

ELEVATED_TYPE = "shellEnvironment"
"""The bundled connection type by which elevated connections run."""

SUDO_PASSWORD = "sudo-password"  # noqa: S105 - a kind of documents
"""The kind of the documents with passwords for sudo; the key of each is the id of its connection or category."""

MAX_USER = 64
MAX_GIVEN = 1000
"""Passwords in memory from which on the oldest unused one is forgotten."""

UNUSED_SECONDS = 60.0
"""Without a link, a temporary connection and a given password are dropped after this time; a client must open a link
within it."""


@dataclass
class _Temporary:
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
        self._by_id: dict[str, _Temporary] = {}

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
            for id, entry in alive.items():
                alike = (entry.connection.type, entry.fingerprint) == (type, fingerprint) and same(
                    entry.connection.data
                )
                # An invisible one counts as none: its id would tell the token that somebody works there.
                if alike and is_visible(id):
                    entry.until = None if entry.until is None else _soon()
                    return id, False
            if len(alive) >= MAX_TEMPORARY:
                raise TemporaryLimit(
                    f"There are {MAX_TEMPORARY:,} temporary connections already: stop the shells of some."
                )
            if (why := refused(MAX_TEMPORARY, share, [entry.share for entry in alive.values()])) is not None:
                raise TemporaryLimit(f"Of {MAX_TEMPORARY:,} temporary connections {why}: stop the shells of some.")
            connection = _made(name, type, data)
            self._by_id = {**alive, connection.id: _Temporary(connection, fingerprint, _soon(), share)}
            return connection.id, True

    @property
    def ids(self) -> list[str]:
        """The ids of all that are kept."""
        return list(self._by_id)

    def get(self, id: str) -> Connection | None:
        """Return the connection ``id``, or None if none is kept."""
        if not self._by_id:
            return None
        with self._lock:
            entry = self._by_id.get(id)
            return None if entry is None or _is_over(entry) else entry.connection

    def those_of(self, ids: Iterable[str]) -> dict[str, Connection]:
        """Return the connections among ``ids`` that are kept."""
        return {id: connection for id in ids if (connection := self.get(id)) is not None} if self._by_id else {}

    def set_state(self, id: str, state: Mapping[str, Any]) -> None:
        """Store the state of a connection, if it is still kept."""
        with self._lock:
            if id in self._by_id:
                self._by_id[id].connection = replace(self._by_id[id].connection, state=dict(state))

    def hold(self, id: str, holder: str) -> None:
        """Keep the connection until ``holder`` leaves it, because a link to ``holder`` is being opened."""
        with self._lock:
            entry = self._by_id.get(id)
            if entry is not None and not _is_over(entry):
                entry.holders.add(holder)
                entry.until = None

    def leave(self, id: str, holder: str) -> None:
        """Keep the connection for :data:`UNUSED_SECONDS` if nobody else holds it: ``holder`` has no link left."""
        with self._lock:
            entry = self._by_id.get(id)
            if entry is not None and not _is_over(entry):
                entry.holders.discard(holder)
                entry.until = None if entry.holders else _soon()

    def remove(self, ids: Iterable[str]) -> None:
        """Forget the connections ``ids``."""
        with self._lock:
            for id in ids:
                self._by_id.pop(id, None)

    def _alive(self) -> dict[str, _Temporary]:
        return {id: entry for id, entry in self._by_id.items() if not _is_over(entry)}


def _made(name: str, type: str, data: Mapping[str, Any]) -> Connection:
    check_name(name)
    at = now()
    return Connection(
        id=str(uuid.uuid4()),
        name=name,
        path=(segment(name),),
        type=type,
        data=dict(data),
        category=ALL_CONNECTIONS,
        dependency_digest=dependencies.NO_DEPENDENCIES,
        created=at,
        last_used=at,
        last_modified=at,
        state={},
        cache={},
    )


def _soon() -> float:
    return time.monotonic() + UNUSED_SECONDS


def _is_over(entry: _Temporary | _SudoPasswordInMemory) -> bool:
    return entry.until is not None and time.monotonic() > entry.until


class SudoPassword(NamedTuple):
    """A stored password, sealed; ``of`` is the id of its connection or category."""

    of: str
    sealed: Mapping[str, Any]


@dataclass
class _SudoPasswordInMemory:
    """A sealed password, and the time until which it is kept; None while a link that uses it is open.

    It is used only while the connections below are unchanged: ``digest`` is their digest of that time.
    """

    sealed: Mapping[str, Any]
    digest: str
    until: float | None


class SudoPasswords:
    """The passwords that sudo asks for, stored and given. Safe to use from several threads.

    Methods that read the vault raise :class:`connmgr.errors.VaultUnavailable` and
    :class:`connmgr.errors.IntegrityError` as those of :class:`Documents`.
    """

    def __init__(self, database: Database, key: VaultKey) -> None:
        self._database = database
        self._key = key
        self._documents = Documents(database, key, SUDO_PASSWORD)
        self._lock = threading.Lock()
        self._given: dict[str, _SudoPasswordInMemory] = {}
        self._used: set[str] = set()

    def store(self, of: str, sealed: Mapping[str, Any] | None) -> None:
        """Store the password of a connection or category, in place of any other; None removes it."""
        before = self._documents.by_key(of)
        if sealed is None:
            self._documents.remove([before.id] if before else [])
        elif before is None:
            self._documents.add(Document(key=of, body={"sealed": dict(sealed)}))
        else:
            self._documents.change(before.id, lambda document: replace(document, body={"sealed": dict(sealed)}))

    def stored(self, connection: str | None, category: str) -> SudoPassword | None:
        """Return the password of ``connection``, or else of the nearest category, from ``category`` upwards."""
        above = self._database.read(lambda tx: self._upwards(tx, category))
        for of in (*([connection] if connection else []), *above):
            password = self._documents.by_key(of)
            if password is not None:
                return SudoPassword(of, password.body["sealed"])
        return None

    def over_each(self, connections: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """Return as :meth:`over_each_within` does, in a transaction of its own."""
        return self._database.read(lambda tx: self.over_each_within(tx, connections))

    def over_each_within(self, tx: sa.Connection, connections: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """Return the sealed passwords of ``connections``, which are given with the ids of their categories.

        Each is the one that :meth:`stored` returns; connections without one are left out.
        """
        sealed_by_holder = {document.key: document.body["sealed"] for document in self._documents.all_within(tx)}
        if not sealed_by_holder:
            return {}
        above = {category: self._upwards(tx, category) for category in set(connections.values())}
        places = {
            id: [of for of in (id, *above[category]) if of in sealed_by_holder] for id, category in connections.items()
        }
        return {id: sealed_by_holder[nearest[0]] for id, nearest in places.items() if nearest}

    def give(
        self, id: str, sealed: Mapping[str, Any], digest: str, *, same: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        """Keep a password for the elevated connection ``id`` in memory; the :func:`same` one stays as it is.

        ``digest`` is the digest of the connections below. If there are too many passwords, one of the holder with the
        most is forgotten.
        """
        with self._lock:
            self._given = {other: entry for other, entry in self._given.items() if not _is_over(entry)}
            entry = self._given.get(id)
            if entry is not None and entry.digest == digest and same(entry.sealed):
                return
            # One in use is not forgotten: its link may have to be opened again, and nobody could be asked then.
            unused = [other for other, each in self._given.items() if each.until is not None]
            if entry is None and len(self._given) >= MAX_GIVEN and unused:
                holders = Counter(map(_holder_of, unused))
                del self._given[next(key for key in unused if holders[_holder_of(key)] == max(holders.values()))]
            self._given[id] = _SudoPasswordInMemory(
                sealed, digest, None if id in self._used else time.monotonic() + UNUSED_SECONDS
            )

    def given(self, id: str, digest: str) -> Mapping[str, Any] | None:
        """Return the password that was given for the elevated connection ``id`` over this ``digest``, if it is kept."""
        with self._lock:
            entry = self._given.get(id)
            return None if entry is None or _is_over(entry) or entry.digest != digest else entry.sealed

    def hold(self, id: str) -> None:
        """Keep the password for ``id`` until :meth:`leave`, because a link is being opened."""
        with self._lock:
            self._used.add(id)
            if id in self._given and not _is_over(self._given[id]):
                self._given[id].until = None

    def leave(self, id: str) -> None:
        """Keep the password for ``id`` for :data:`UNUSED_SECONDS`, because its last link is closed."""
        with self._lock:
            self._used.discard(id)
            if id in self._given and not _is_over(self._given[id]):
                self._given[id].until = time.monotonic() + UNUSED_SECONDS

    def in_use(self) -> list[str]:
        """Return the elevated connections that have a link."""
        with self._lock:
            return list(self._used)

    def over(self, connections: Collection[str]) -> list[str]:
        """Return the elevated connections in use that run over one of ``connections``."""
        with self._lock:
            return [id for id in self._used if base_of(id) in connections]

    def _upwards(self, tx: sa.Connection, category: str) -> list[str]:
        ids: list[str] = []
        at: str | None = category
        # Nobody can make a circle of categories but by changing the database, and that must not keep this from ending.
        while at is not None and at not in ids:
            ids.append(at)
            at = category_rows.load(tx, [at], self._key)[at].parent
        return ids


def _holder_of(id: str) -> str:
    elevation = elevation_of(id)
    return OWNER if elevation is None else elevation.holder


def derived(elevation: Elevation, base: Connection, digest: str, password: Mapping[str, Any] | None) -> Connection:
    """Return the elevated connection over ``base``, which the ``digest`` of its dependencies binds to it.

    :raises UnknownConnection: ``base`` is itself an elevated connection.
    """
    if elevation_of(base.id) is not None:
        raise UnknownConnection(elevation.id)
    return Connection(
        id=elevation.id,
        name=elevation.user,
        path=(*base.path, segment(elevation.user)),
        type=ELEVATED_TYPE,
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
        dependency_digest=digest,
        created=base.created,
        last_used=base.last_used,
        last_modified=base.last_modified,
        state={},
        cache={},
    )


def forget_within(tx: sa.Connection, ids: Iterable[str]) -> None:
    """Remove the passwords of connections or categories that are being removed."""
    for id in ids:
        tx.execute(document.delete().where(document.c.kind == SUDO_PASSWORD, document.c.key == id))
