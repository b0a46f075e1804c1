"""Connections: storing, finding, changing and removing them, each change in one transaction."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa

from connmgr.errors import IntegrityError, ProtectedEntry, UnknownConnection, VaultUnavailable
from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import changes, record, rows, way
from connmgr.vault.changes import Permission, without_access
from connmgr.vault.database import Database
from connmgr.vault.elevated import Elevation, SudoPasswords, base_of, derived, elevation_of, forget_within
from connmgr.vault.query import ConnectionQuery, Listed
from connmgr.vault.record import Connection, Row, canonical
from connmgr.vault.tables import connection as table
from connmgr.vault.tables import now
from connmgr.vault.temporary import TemporaryConnections
from connmgr.vault.tree import carriers, dependents
from connmgr.vault.wellknown import DEFAULT, LOCAL

TOUCH_SECONDS = 60.0
"""A connection's time of last use is written at most once in this time, because a commit costs an fsync."""

_log = logging.getLogger(__name__)


class Unchanged:
    """The type of :data:`UNCHANGED`, which means "do not change", where None is a value."""


UNCHANGED: Final = Unchanged()


@dataclass(frozen=True)
class Removed:
    """The ids of all that was removed; ``jobs`` by the removed connections; ``paths`` by the ids."""

    connections: list[str] = field(default_factory=list)
    jobs: Mapping[str, list[str]] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    categories: list[str] = field(default_factory=list)


class Connections:
    """The vault's connections, and ``temporary`` ones in memory; safe to use from several threads.

    Its methods raise :class:`VaultUnavailable` when the database does not answer, and
    :class:`connmgr.errors.IntegrityError` for a record that was changed outside of connmgr, which can only be removed.
    """

    def __init__(self, database: Database, key: VaultKey) -> None:
        self.temporary = TemporaryConnections()
        self.sudo_passwords = SudoPasswords(database, key)
        self._database = database
        self._key = key
        self._seen: dict[str, tuple[Row, Connection]] = {}
        self._touched: dict[str, float] = {}
        self._touching = threading.Lock()

    def get(self, id: str) -> Connection:
        """Return the connection ``id``, or raise :class:`UnknownConnection`."""
        elevation = elevation_of(id)
        if elevation is not None:
            return self._elevated(elevation)
        return self.temporary.get(id) or self._load(self._database.read(lambda tx: rows.one(tx, id)))

    def infos(self, ids: Sequence[str]) -> list[Connection]:
        """Return all the connections ``ids``, in their order, or raise :class:`UnknownConnection`."""
        temporary = self.temporary.those_of(ids)
        temporary |= {id: self._elevated(elevation) for id in ids if (elevation := elevation_of(id)) is not None}
        found = self._database.read(lambda tx: rows.by_id(tx, (id for id in ids if id not in temporary)))
        return [temporary[id] if id in temporary else self._load(found[id]) for id in ids]

    def each(self, ids: Collection[str]) -> dict[str, Connection | IntegrityError]:
        """Return the existing ones of ``ids``; for one that was changed outside of connmgr, the error.

        Verifying and parsing a row takes three times as long as reading it. So a row that equals the last one read with
        its id yields the same object, which must not be changed.
        """
        found: dict[str, Connection | IntegrityError] = {**self.temporary.those_of(ids)}
        found |= dict(self._each_elevated(ids))
        before, seen = self._seen, dict[str, tuple[Row, Connection]]()
        for id, row in self._database.read(lambda tx: rows.existing(tx, ids)).items():
            try:
                same = id in before and before[id][0] == row
                seen[id] = before[id] if same else (row, self._load(row))
                found[id] = seen[id][1]
            except IntegrityError as error:
                found[id] = error
        self._seen = seen
        return found

    def way(self, targets: Iterable[str], bound: str | None) -> dict[str, Connection]:
        """Return the connections ``targets`` and all that they run over, from one snapshot.

        ``bound`` is the ``way`` of the stored connection that runs over ``targets``, or None if it is not stored yet.
        :raises UnknownConnection: one does not exist.
        :raises IntegrityError: one was changed outside of connmgr, or they do not match ``bound``.
        """

        direct = set(targets)
        if not direct and bound in (None, way.NOWHERE):
            return {}

        def work(tx: sa.Connection) -> dict[str, Row]:
            # Only an elevated connection runs over a temporary one.
            temporary = {id: _as_row(one) for id, one in self.temporary.those_of(direct).items()}
            found = way.verified(tx, self._key, direct - temporary.keys()) | temporary
            if bound is not None and bound != way.digest(found[id] for id in direct):
                raise IntegrityError(
                    "The connections under this one were changed outside of connmgr: give it others, remove it, or "
                    "restore the vault from a backup."
                )
            return found

        found = self._database.read(work)
        return {id: self.temporary.get(id) or self._load(row) for id, row in found.items()}

    def query(
        self, category_filter: str = "*", connection_filter: str = "*", type_filter: str = "*", name_filter: str = "*"
    ) -> list[str]:
        """Return the ids of connections that match all filters, by path; a name is the path, or category and path."""
        search = ConnectionQuery(category_filter, connection_filter, type_filter, name_filter)
        return self._database.read(lambda tx: search.run(tx, self._key))

    def listed(
        self, category_filter: str = "*", connection_filter: str = "*", type_filter: str = "*", name_filter: str = "*"
    ) -> list[Listed]:
        """Like :meth:`query`, with the parts of each name; the records are not verified."""
        search = ConnectionQuery(category_filter, connection_filter, type_filter, name_filter)
        return self._database.read(lambda tx: search.listed(tx, self._key))

    def add(
        self,
        name: str,
        type: str,
        data: Mapping[str, Any],
        *,
        fingerprint: bytes,
        same: Callable[[Mapping[str, Any]], bool],
        is_visible: Callable[[str], bool] = lambda _: True,
        category: str | None = None,
        references: Iterable[str] = (),
        parent: str | None = None,
        folder: str | None = None,
        token: str | None = None,
    ) -> tuple[str, bool]:
        """Store a connection and return its id and True, or the id of an equivalent one and False.

        The secrets in ``data`` are sealed. Equivalent is the oldest connection of this ``type`` and ``fingerprint``
        (:func:`connmgr.vault.record.fingerprint`) for which ``same`` and ``is_visible`` return True: the one compares
        data with their secrets, the other takes an id; both are called while other writers wait. ``references``
        are the connections that this one runs over; its path begins with the path of ``parent``, one of them, and
        ``folder``. Without a ``category`` it gets its parent's, or else the default one. ``token`` is the id of the
        token that adds it, None for the owner.
        :raises UnknownConnection: a reference or the parent does not exist.
        :raises UnknownCategory: no such category.
        :raises IntegrityError: a connection that it runs over was changed outside of connmgr.
        """
        # Made outside of the transaction: a repetition after a conflict must store the same connection.
        new = rows.new(str(uuid.uuid4()), name, type, data, fingerprint, category or DEFAULT, parent)
        new["cache"] = rows.marked(new["cache"], token)
        targets = {*references, *([parent] if parent else [])}

        def work(tx: sa.Connection) -> tuple[str, bool]:
            rows.require_category(tx, new["category"])
            found = way.verified(tx, self._key, targets)
            inherited = {"category": found[parent]["category"]} if parent and category is None else {}
            bound = way.digest(found[target] for target in targets)
            for row in rows.candidates(tx, [fingerprint])[fingerprint]:
                # A record that was changed outside of connmgr equals none.
                alike = row["type"] == type and record.intact(row, self._key)
                if alike and same(record.load(row, self._key).data) and is_visible(row["id"]):
                    return row["id"], False
            changes.insert(tx, self._key, new | inherited | {"way": bound}, targets, folder)
            return new["id"], True

        return self._database.write(work)

    def update(self, id: str, **given: Any) -> list[str]:
        """Change the given fields of a connection, as :meth:`update_within` does, in a transaction of its own."""
        erases = given.get("data") is not None
        return self._database.write(lambda tx: self.update_within(tx, id, **given), erases=erases)

    def update_within(
        self,
        tx: sa.Connection,
        id: str,
        *,
        name: str | None = None,
        category: str | None = None,
        data: Mapping[str, Any] | None = None,
        fingerprint: bytes | None = None,
        references: Iterable[str] | None = None,
        parent: str | Unchanged | None = UNCHANGED,
        permits: Permission = without_access,
        token: str | None = None,
    ) -> list[str]:
        """Change the given fields of a connection, and the paths of those below it; its type stays.

        A new ``category`` also becomes that of the connections below it which shared the old one; return their ids.

        ``data`` requires its ``fingerprint``, and ``references`` the ``parent``. ``permits`` is called with the secrets
        of each connection above it whose way changes, because they are tied to the new way; with the passwords for sudo
        on it and on these; and with the secrets of each connection that it newly runs over, because its users can then
        use them. ``token`` is the id of the token that changes it, None for the owner: connections that a token has set
        are marked, until the owner gives them data.
        :raises SecretLocked: ``permits`` refused.
        :raises UnknownConnection: it, a reference or the parent does not exist.
        :raises UnknownCategory: no such category.
        :raises ConnectionCycle: it would run over itself.
        """
        if (data is None, references is None) != (fingerprint is None, isinstance(parent, Unchanged)):
            raise ValueError("data and fingerprint, references and parent are given together")
        given = {"name": name, "category": category, "fingerprint": fingerprint}
        columns: dict[str, Any] = {column: value for column, value in given.items() if value is not None}
        if data is not None:
            columns["data"] = canonical(data)
        if not isinstance(parent, Unchanged):
            columns["parent"] = parent
        targets = None if references is None else {*references, *([columns["parent"]] if columns["parent"] else [])}
        columns["last_modified"] = now()
        return changes.change(tx, self._key, id, columns, targets, permits, self.sudo_passwords.over_each_within, token)

    def remove(self, ids: Iterable[str]) -> Removed:
        """Remove the connections ``ids`` and all that run over them, with their jobs; return all that was removed.

        :raises UnknownConnection: one does not exist; nothing was removed.
        :raises ProtectedEntry: the local machine is among them.
        """
        named = list(ids)
        temporary = self.temporary.those_of(named)
        stored = [id for id in named if id not in temporary]

        def work(tx: sa.Connection) -> Removed:
            rows.require(tx, stored)
            return self.remove_within(tx, stored)

        removed = self._database.write(work, erases=True) if stored else Removed()
        self.temporary.remove(temporary)
        return replace(removed, connections=[*removed.connections, *temporary])

    def with_dependents(self, ids: Iterable[str]) -> list[str]:
        """Return ``ids`` and the ids of all connections that run over them."""
        return self._database.read(lambda tx: dependents(tx, ids))

    def with_carriers(self, ids: Iterable[str]) -> list[str]:
        """Return ``ids`` and the ids of all connections that they run over."""
        own = list(ids)
        bases = [elevation.base for id in own if (elevation := elevation_of(id)) is not None]
        return self._database.read(lambda tx: carriers(tx, [*own, *bases]))

    def hold(self, id: str) -> None:
        """Keep what is only in memory of the connection ``id`` until :meth:`leave`: a link to it is being opened."""
        if elevation_of(id) is not None:
            self.sudo_passwords.hold(id)
        self.temporary.hold(base_of(id), id)

    def leave(self, id: str) -> None:
        """Let go of what :meth:`hold` has kept."""
        if elevation_of(id) is not None:
            self.sudo_passwords.leave(id)
        self.temporary.leave(base_of(id), id)

    def give_sudo_password(
        self, elevation: Elevation, sealed: Mapping[str, Any], *, same: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        """Keep a password for an elevated connection in memory, while its way is what it is now.

        A password of the same holder for which ``same`` returns True stays as it is.
        """
        base = self.get(elevation.base)
        self.sudo_passwords.give(elevation.id, sealed, way.digest([_as_row(base)]), same=same)

    def unchanged(self, id: str, data: Mapping[str, Any], way: str | None) -> bool:
        """Whether the connection ``id`` exists with this data, and all that it runs over is unchanged."""
        if (kept := self.temporary.get(id)) is not None:
            return (kept.data, kept.way) == (data, way)
        elevation = elevation_of(id)
        if elevation is not None:
            try:
                now_derived = self._elevated(elevation)
            except (UnknownConnection, IntegrityError):
                return False
            return (now_derived.data, now_derived.way) == (data, way)
        return self._database.read(lambda tx: rows.basis(tx, id)) == (canonical(data), way)

    def touch(self, *ids: str) -> None:
        """Record that connections and their categories are in use, each at most once a minute, in one change.

        If the vault cannot be written, this is only logged, because the caller's work can continue.
        """
        with self._touching:
            at = time.monotonic()
            stored = (id for id in map(base_of, ids) if self.temporary.get(id) is None)
            due = [id for id in stored if at - self._touched.get(id, -TOUCH_SECONDS) >= TOUCH_SECONDS]
            if not due:
                return
            self._touched = {known: then for known, then in self._touched.items() if at - then < TOUCH_SECONDS}
            self._touched.update(dict.fromkeys(due, at))
        try:
            self._database.write(lambda tx: rows.use(tx, due))
        except VaultUnavailable as error:
            _log.warning("the time of last use of connections %s is not stored: %s", ", ".join(due), error.message)

    def set_state(self, id: str, state: Mapping[str, Any]) -> None:
        """Store the state that a probe found, or raise :class:`UnknownConnection`; an elevated one keeps none."""
        if elevation_of(id) is not None:
            return
        if self.temporary.get(id) is not None:
            self.temporary.set_state(id, state)
            return
        change = table.update().where(table.c.id == id).values(state=canonical(state))
        if not self._database.write(lambda tx: tx.execute(change).rowcount):
            raise UnknownConnection(id)

    def set_cache(self, id: str, cache: Mapping[str, Any]) -> None:
        """Store the ``cache`` of a connection, or raise :class:`UnknownConnection`."""

        def work(tx: sa.Connection) -> None:
            # Who read the cache before a token changed the connection must not take its mark away.
            token = json.loads(rows.one(tx, id)["cache"]).get(rows.SET_BY_TOKEN)
            tx.execute(table.update().where(table.c.id == id).values(cache=rows.marked(canonical(cache), token)))

        self._database.write(work)

    def set_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the states found of stored connections, in one change; removed ones are ignored."""
        updates = [
            table.update().where(table.c.id == id).values(state=canonical(state)) for id, state in states.items()
        ]

        def work(tx: sa.Connection) -> None:
            for update in updates:
                tx.execute(update)

        if updates:
            self._database.write(work)

    def seed(self, tx: sa.Connection) -> None:
        """Store the local machine in a new vault."""
        local = rows.new(LOCAL, "local machine", "local", {}, record.fingerprint({}), DEFAULT, None)
        changes.insert(tx, self._key, local | {"way": way.NOWHERE}, ())

    def remove_within(self, tx: sa.Connection, ids: Iterable[str]) -> Removed:
        """Like :meth:`remove`, for existing connections within a larger change."""
        removed = dependents(tx, ids)
        if LOCAL in removed:
            raise ProtectedEntry("The local machine cannot be removed.")
        forget_within(tx, removed)
        return Removed(removed, *rows.delete(tx, removed))

    def move_within(self, tx: sa.Connection, categories: Iterable[str], to: str, token: str | None) -> None:
        """Move the connections in ``categories`` to the category ``to``, for a token or None, the owner."""
        changes.move(tx, self._key, categories, to, token)

    def _elevated(self, elevation: Elevation) -> Connection:
        """Return an elevated connection as it is now, or raise as :meth:`get`."""
        base = self.get(elevation.base)
        bound = way.digest([_as_row(base)])
        password = self.sudo_passwords.given(elevation.id, bound)
        # A temporary one may lead anywhere: no stored password goes there.
        if password is None and self.temporary.get(base.id) is None:
            stored = self.sudo_passwords.stored(base.id, base.category)
            password = None if stored is None else stored.sealed
        return derived(elevation, base, bound, password)

    def _each_elevated(self, ids: Iterable[str]) -> Iterator[tuple[str, Connection | IntegrityError]]:
        for id in ids:
            if (elevation := elevation_of(id)) is not None:
                try:
                    yield id, self._elevated(elevation)
                except IntegrityError as error:
                    yield id, error
                except UnknownConnection:
                    # As one that does not exist.
                    continue

    def _load(self, row: Row) -> Connection:
        try:
            return record.load(row, self._key)
        except IntegrityError:
            # Under a rotated key no record is authentic, though nobody tampered with them.
            self._database.read(self._database.check)
            raise


def _as_row(one: Connection) -> Row:
    """Return the members of a connection's row that ways depend on."""
    return {"id": one.id, "type": one.type, "data": canonical(one.data), "way": one.way}
