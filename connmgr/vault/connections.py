"""Connections: storing, finding, changing and removing them, each change in one transaction."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa

from connmgr.computing import in_pieces
from connmgr.contract.common import MAX_LABELS
from connmgr.errors import (
    IntegrityError,
    InvalidRequest,
    ProtectedEntry,
    SecretLocked,
    UnknownConnection,
    VaultUnavailable,
)
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import connection_rows, dependencies
from connmgr.vault.connection_rows import Connection, carriers, dependents
from connmgr.vault.database import Database
from connmgr.vault.names import DEFAULT, LOCAL, SEPARATOR, Elevation, base_of, check_name, elevation_of
from connmgr.vault.schema import Row, canonical, chunks, closure, now
from connmgr.vault.schema import connection as table
from connmgr.vault.search import ConnectionQuery, Listed
from connmgr.vault.unstored import SudoPasswords, TemporaryConnections, derived, forget_within

TOUCH_SECONDS = 60.0
"""A connection's time of last use is written at most once in this time, because a commit costs an fsync."""

Permission = Callable[[Sequence[Mapping[str, Any]]], None]
"""Raises :class:`connmgr.errors.SecretLocked` unless the author of a change may open these sealed secrets."""

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


Passwords = Callable[[sa.Connection, Mapping[str, str]], Mapping[str, Mapping[str, Any]]]
"""Returns the sealed passwords for sudo of connections, which are given with their categories, by their ids."""


def without_access(secrets: Sequence[Mapping[str, Any]]) -> None:
    """Refuse changes that affect secrets."""
    if secrets:
        raise SecretLocked("Nothing is unlocked.", principals=[])


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
        self._seen: dict[str, tuple[tuple[Any, ...], Connection]] = {}
        self._touched: dict[str, float] = {}
        self._touching = threading.Lock()

    def get(self, id: str) -> Connection:
        """Return the connection ``id``, or raise :class:`UnknownConnection`."""
        elevation = elevation_of(id)
        if elevation is not None:
            return self._elevated(elevation)
        return self.temporary.get(id) or self._load(self._database.read(lambda tx: connection_rows.one(tx, id)))

    def infos(self, ids: Sequence[str]) -> list[Connection]:
        """Return all the connections ``ids``, in their order, or raise :class:`UnknownConnection`."""
        temporary = self.temporary.those_of(ids)
        temporary |= {id: self._elevated(elevation) for id in ids if (elevation := elevation_of(id)) is not None}
        rows = self._database.read(lambda tx: connection_rows.by_id(tx, (id for id in ids if id not in temporary)))
        return [temporary[id] if id in temporary else self._load(rows[id]) for id in ids]

    def each(self, ids: Collection[str]) -> dict[str, Connection | IntegrityError]:
        """Return the existing ones of ``ids``; for one that was changed outside of connmgr, the error.

        Verifying and parsing a row takes three times as long as reading it. So a row that equals the last one read with
        its id yields the same object, which must not be changed.
        """
        connections: dict[str, Connection | IntegrityError] = {**self.temporary.those_of(ids)}
        connections |= dict(self._each_elevated(ids))
        before, current = self._seen, dict[str, tuple[tuple[Any, ...], Connection]]()
        for id, raw in in_pieces(self._database.read(lambda tx: connection_rows.existing(tx, ids)).items()):
            try:
                same = id in before and before[id][0] == raw
                current[id] = before[id] if same else (raw, self._load(connection_rows.as_row(raw)))
                connections[id] = current[id][1]
            except IntegrityError as error:
                connections[id] = error
        # Those of a larger selection stay while parts of it are read.
        self._seen = {**before, **current} if current.keys() <= before.keys() else current
        return connections

    def carriers_of(self, targets: Iterable[str], bound: str | None) -> dict[str, Connection]:
        """Return the connections ``targets`` and all that they run over, from one snapshot.

        ``bound`` is the dependency digest of the connection that runs over ``targets``, None before it is stored.
        :raises UnknownConnection: one does not exist.
        :raises IntegrityError: one was changed outside of connmgr, or they do not match ``bound``.
        """

        direct = set(targets)
        if not direct and bound in (None, dependencies.NO_DEPENDENCIES):
            return {}

        def work(tx: sa.Connection) -> dict[str, Row]:
            # Only an elevated connection runs over a temporary one.
            temporary = {id: _as_row(connection) for id, connection in self.temporary.those_of(direct).items()}
            rows = dependencies.load(tx, self._key, direct - temporary.keys()) | temporary
            if bound is not None and bound != dependencies.digest(rows[id] for id in direct):
                raise IntegrityError(
                    "The connections that this one runs over were changed outside of connmgr: let it run over others, "
                    "remove it, or restore the vault from a backup."
                )
            return rows

        rows = self._database.read(work)
        return {id: self.temporary.get(id) or self._load(row) for id, row in rows.items()}

    def query(
        self,
        category_filter: str = "*",
        connection_filter: str = "*",
        type_filter: str = "*",
        name_filter: str = "*",
        where: str | None = None,
    ) -> list[str]:
        """Return the ids of connections that match all filters, by path; a name is the path, or category and path.

        ``where`` is a condition of :mod:`connmgr.vault.where`.
        """
        search = ConnectionQuery(category_filter, connection_filter, type_filter, name_filter, where)
        return self._database.read(lambda tx: search.run(tx, self._key))

    def listed(
        self,
        category_filter: str = "*",
        connection_filter: str = "*",
        type_filter: str = "*",
        name_filter: str = "*",
        where: str | None = None,
    ) -> list[Listed]:
        """Like :meth:`query`, with the parts of each name; the records are not verified."""
        search = ConnectionQuery(category_filter, connection_filter, type_filter, name_filter, where)
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
        labels: Mapping[str, str] | None = None,
    ) -> tuple[str, bool]:
        """Store a connection and return its id and True, or the id of an equivalent one and False.

        The secrets in ``data`` are sealed. Equivalent is the oldest connection of this ``type`` and ``fingerprint``
        (:func:`connmgr.vault.connection_rows.fingerprint`) for which ``same`` and ``is_visible`` return True: the one
        compares data with their secrets, the other takes an id; both are called while other writers wait.
        ``references`` are the connections that this one runs over; its path begins with the path of ``parent``, one of
        them, and ``folder``. Without a ``category`` it gets its parent's, or else the default one. ``token`` is the id
        of the token that adds it, None for the owner. An equivalent connection keeps its own labels.
        :raises InvalidRequest: the name is blank, or too long.
        :raises UnknownConnection: a reference or the parent does not exist.
        :raises UnknownCategory: no such category.
        :raises IntegrityError: a connection that it runs over was changed outside of connmgr.
        """
        check_name(name)
        # Made outside of the transaction: a repetition after a conflict must store the same connection.
        id = str(uuid.uuid4())
        place = DEFAULT if category is None else category
        new = connection_rows.new(id, name, type, data, fingerprint, place, parent, labels)
        new["cache"] = connection_rows.marked(new["cache"], token)
        targets = {*references, *([parent] if parent else [])}

        def work(tx: sa.Connection) -> tuple[str, bool]:
            connection_rows.require_category(tx, new["category"])
            carriers = dependencies.load(tx, self._key, targets)
            inherited = {"category": carriers[parent]["category"]} if parent and category is None else {}
            bound = dependencies.digest(carriers[target] for target in targets)
            for row in connection_rows.candidates(tx, [fingerprint])[fingerprint]:
                # A record that was changed outside of connmgr equals none.
                alike = row["type"] == type and connection_rows.intact(row, self._key)
                if alike and same(connection_rows.load(row, self._key).data) and is_visible(row["id"]):
                    return row["id"], False
            insert_row(tx, self._key, new | inherited | {"way": bound}, targets, folder)
            return id, True

        return self._database.write(work)

    def update(self, id: str, *, known: datetime | None = None, **given: Any) -> list[str]:
        """Change the given fields of a connection, as :meth:`update_within` does, in a transaction of its own.

        :raises ConnectionChanged: it was changed since the time that is ``known`` as that of its last change.
        """

        def work(tx: sa.Connection) -> list[str]:
            connection_rows.require_unchanged(tx, {} if known is None else {id: known})
            return self.update_within(tx, id, **given)

        return self._database.write(work, erases=given.get("data") is not None)

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
        token: str | Literal[False] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Change the given fields of a connection, and the paths of the connections below it; its type stays.

        Connections below it that were in the same category move with it to a new ``category``; return their ids.

        ``data`` requires its ``fingerprint``, and ``references`` the ``parent``. ``permits`` is called with the secrets
        of each connection above it whose dependency digest changes, because they are tied to the new one; with the
        passwords for sudo on it and on these; and with the secrets of each connection that it newly runs over, because
        its users can then use them. ``token`` is the id of the token that changes it, None for the owner: connections
        that a token has set are marked, until the owner gives them data; False leaves the marks as they are.
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
        if labels is not None:
            columns["labels"] = canonical(labels)
        columns["last_modified"] = now()
        return change_row(tx, self._key, id, columns, targets, permits, self.sudo_passwords.over_each_within, token)

    def relabel(self, ids: Iterable[str], given: Mapping[str, str], removed: Collection[str]) -> list[str]:
        """Give stored connections the labels ``given`` in place of those of the same names, and take ``removed`` away.

        Return the connections whose labels are others now, in the order of ``ids``. Either all are changed, or none.
        :raises UnknownConnection: one does not exist.
        :raises InvalidRequest: one would have too many labels.
        """
        unique_ids = list(dict.fromkeys(ids))

        def relabelled(row: Row) -> Row | None:
            before = json.loads(_checked(self._key, row)["labels"])
            after = {name: value for name, value in {**before, **given}.items() if name not in removed}
            if len(after) > MAX_LABELS:
                raise InvalidRequest(f"{row['path']} would have {len(after)} labels; at most {MAX_LABELS} are allowed.")
            if after == before:
                return None
            new = dict(row) | {"labels": canonical(after)}
            return new | {"mac": connection_rows.mac(new, self._key)}

        # Before other writers wait, since verifying and computing takes several times as long as storing. What others
        # change meanwhile has another code, and is computed again.
        before = self._database.read(lambda tx: connection_rows.by_id(tx, unique_ids))
        after = {id: relabelled(before[id]) for id in in_pieces(unique_ids)}

        def work(tx: sa.Connection) -> list[str]:
            codes = connection_rows.codes(tx, unique_ids)
            others = connection_rows.by_id(tx, [id for id in unique_ids if codes[id] != before[id]["mac"]])
            current = after | {id: relabelled(row) for id, row in others.items()}
            changed = [row for row in current.values() if row is not None]
            connection_rows.relabel(tx, changed, now())
            return [row["id"] for row in changed]

        return self._database.write(work)

    def remove(self, ids: Iterable[str]) -> Removed:
        """Remove the connections ``ids`` and all that run over them, with their jobs; return all that was removed.

        :raises UnknownConnection: one does not exist; nothing was removed.
        :raises ProtectedEntry: the local machine is among them.
        """
        all_ids = list(ids)
        temporary = self.temporary.those_of(all_ids)
        in_database = [id for id in all_ids if id not in temporary]

        def work(tx: sa.Connection) -> Removed:
            connection_rows.require(tx, in_database)
            return self.remove_within(tx, in_database)

        removed = self._database.write(work, erases=True) if in_database else Removed()
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
        """Keep the connection ``id`` and its password until :meth:`leave`, if they are only in memory: a link opens."""
        if elevation_of(id) is not None:
            self.sudo_passwords.hold(id)
        self.temporary.hold(base_of(id), id)

    def leave(self, id: str) -> None:
        """End :meth:`hold`: the last link to the connection is closed."""
        if elevation_of(id) is not None:
            self.sudo_passwords.leave(id)
        self.temporary.leave(base_of(id), id)

    def give_sudo_password(
        self, elevation: Elevation, sealed: Mapping[str, Any], *, same: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        """Keep a password for an elevated connection in memory, until a connection that it runs over changes.

        A password of the same holder for which ``same`` returns True stays as it is.
        """
        base = self.get(elevation.base)
        self.sudo_passwords.give(elevation.id, sealed, dependencies.digest([_as_row(base)]), same=same)

    def unchanged(self, id: str, data: Mapping[str, Any], dependency_digest: str | None) -> bool:
        """Whether the connection ``id`` exists with this data, and all that it runs over is unchanged."""
        if (temporary := self.temporary.get(id)) is not None:
            return (temporary.data, temporary.dependency_digest) == (data, dependency_digest)
        elevation = elevation_of(id)
        if elevation is not None:
            try:
                now_derived = self._elevated(elevation)
            except (UnknownConnection, IntegrityError):
                return False
            return (now_derived.data, now_derived.dependency_digest) == (data, dependency_digest)
        return self._database.read(lambda tx: connection_rows.basis(tx, id)) == (canonical(data), dependency_digest)

    def touch(self, *ids: str) -> None:
        """Record that connections and their categories are in use, each at most once a minute, in one change.

        If the vault cannot be written, this is only logged, because the caller's work can continue.
        """
        with self._touching:
            at = time.monotonic()
            # Twice, because most calls are about stored ones that are not due.
            fresh = [id for id in ids if at - self._touched.get(id, -TOUCH_SECONDS) >= TOUCH_SECONDS]
            in_database = (id for id in map(base_of, fresh) if self.temporary.get(id) is None)
            due = [id for id in in_database if at - self._touched.get(id, -TOUCH_SECONDS) >= TOUCH_SECONDS]
            if not due:
                return
            self._touched = {id: used for id, used in self._touched.items() if at - used < TOUCH_SECONDS}
            self._touched.update(dict.fromkeys(due, at))
        try:
            self._database.write(lambda tx: connection_rows.use(tx, due))
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
            token = json.loads(connection_rows.one(tx, id)["cache"]).get(connection_rows.SET_BY_TOKEN)
            marked = connection_rows.marked(canonical(cache), token)
            tx.execute(table.update().where(table.c.id == id).values(cache=marked))

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
        local = connection_rows.new(LOCAL, "local machine", "local", {}, connection_rows.fingerprint({}), DEFAULT, None)
        insert_row(tx, self._key, local | {"way": dependencies.NO_DEPENDENCIES}, ())

    def remove_within(self, tx: sa.Connection, ids: Iterable[str]) -> Removed:
        """Like :meth:`remove`, for existing connections within a larger change."""
        removed = dependents(tx, ids)
        if LOCAL in removed:
            raise ProtectedEntry("The local machine cannot be removed.")
        forget_within(tx, removed)
        return Removed(removed, *connection_rows.delete(tx, removed))

    def _elevated(self, elevation: Elevation) -> Connection:
        """Return an elevated connection as it is now, or raise as :meth:`get`."""
        base = self.get(elevation.base)
        bound = dependencies.digest([_as_row(base)])
        password = self.sudo_passwords.given(elevation.id, bound)
        # A temporary one may lead anywhere: no stored password goes there.
        if password is None and self.temporary.get(base.id) is None:
            stored_password = self.sudo_passwords.stored(base.id, base.category)
            password = None if stored_password is None else stored_password.sealed
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
            return connection_rows.load(row, self._key)
        except IntegrityError:
            # Under a rotated key no record is authentic, though nobody tampered with them.
            self._database.read(self._database.check)
            raise


def _as_row(connection: Connection) -> Row:
    """Return the members of a connection's row that dependency digests cover."""
    return {
        "id": connection.id,
        "type": connection.type,
        "data": canonical(connection.data),
        "way": connection.dependency_digest,
    }


def insert_row(
    tx: sa.Connection, key: VaultKey, row: dict[str, Any], targets: Iterable[str], folder: str | None = None
) -> None:
    """Store a new row, which runs over ``targets``, at its place in the tree."""
    placed = row | connection_rows.place(tx, row, folder)
    connection_rows.insert(tx, [placed | {"mac": connection_rows.mac(placed, key)}], {row["id"]: targets})


def change_row(
    tx: sa.Connection,
    key: VaultKey,
    id: str,
    changes: dict[str, Any],
    targets: set[str] | None,
    permits: Permission,
    passwords: Passwords,
    token: str | Literal[False] | None = False,
) -> list[str]:
    """Change columns of a row, its targets unless ``targets`` is None, and the rows above and below accordingly.

    ``token`` is the id of the token that changes them, None for the owner, False if neither does: the marks of
    connections that tokens have set then stay. Return the ids of the rows below it that moved with it to another
    category.
    :raises connmgr.errors.IntegrityError: a row was changed outside of connmgr.
    """
    before = _checked(key, connection_rows.one(tx, id))
    after = before | changes
    if after["name"] != before["name"]:
        check_name(after["name"])
    if token and {"data", "category"} & changes.keys():
        after["cache"] = connection_rows.marked(after["cache"], token)
    elif token is None and "data" in changes:
        after["cache"] = connection_rows.marked(after["cache"], None)
    if after["category"] != before["category"]:
        connection_rows.require_category(tx, after["category"])
    over: Mapping[str, Row] = {}
    if targets is not None:
        over = dependencies.load(tx, key, targets)
        after["way"] = dependencies.new_digest(tx, before, targets, over)
        connection_rows.run_over(tx, id, targets)
    after |= connection_rows.place(tx, after, connection_rows.folder_of(tx, before))
    above = []
    if (after["data"], after["way"]) != (before["data"], before["way"]):
        above = dependencies.rebound_dependents(tx, key, before, after)
        typed = passwords(tx, {row["id"]: row["category"] for row in (before, *above)})
        sudo = [(row, [typed[row["id"]]]) for row in (before, *above) if row["id"] in typed]
        _require_permission(_secrets_of(above), permits, "Secrets of {} go over this connection")
        _require_permission(sudo, permits, "The password for sudo on {} goes over this connection")
        _require_permission(_secrets_of(over.values()), permits, "This connection runs over {} with its secrets")
        # Another machine may be behind the new data.
        connection_rows.forget_facts(tx, [row["id"] for row in (before, *above)])
    _store(tx, key, [after, *above])
    return _follow(tx, key, before, after, token)


def move_rows(tx: sa.Connection, key: VaultKey, categories: Iterable[str], to: str, token: str | None) -> None:
    """Move the connections in ``categories`` to the category ``to``; ``token`` is as in :func:`change_row`."""
    for some in chunks(categories):
        rows = tx.execute(sa.select(table).where(table.c.category.in_(some))).mappings().all()
        moved = [_checked(key, row) | {"category": to, "last_modified": now()} for row in rows]
        if token is not None:
            moved = [row | {"cache": connection_rows.marked(row["cache"], token)} for row in moved]
        _store(tx, key, moved)


def _checked(key: VaultKey, row: Row) -> dict[str, Any]:
    connection_rows.verify(row, key)
    return dict(row)


def _store(tx: sa.Connection, key: VaultKey, changed: Iterable[dict[str, Any]]) -> None:
    connection_rows.update(tx, [row | {"mac": connection_rows.mac(row, key)} for row in changed])


def _follow(tx: sa.Connection, key: VaultKey, before: Row, after: Row, token: str | Literal[False] | None) -> list[str]:
    """Give the rows below a changed row its new path, and its new category if they shared the old one."""
    if (before["path"], before["category"]) == (after["path"], after["category"]):
        return []
    moved = []
    for some in chunks(closure(tx, [before["id"]], table, "id", "parent")[1:]):
        below = [_checked(key, row) for row in connection_rows.by_id(tx, some).values()]
        for row in below:
            row["path"] = after["path"] + row["path"][len(before["path"]) :]
            row["depth"] = row["path"].count(SEPARATOR) + 1
            if row["category"] == before["category"] != after["category"]:
                row["category"] = after["category"]
                row["cache"] = connection_rows.marked(row["cache"], token) if token else row["cache"]
                moved.append(row["id"])
        _store(tx, key, below)
    return moved


def _secrets_of(some: Iterable[Row]) -> Iterator[tuple[Row, list[Mapping[str, Any]]]]:
    return ((row, list(connection_rows.sealed_secrets(json.loads(row["data"])))) for row in some)


def _require_permission(
    some: Iterable[tuple[Row, Sequence[Mapping[str, Any]]]], permits: Permission, reason: str
) -> None:
    for row, secrets in some:
        try:
            permits(secrets)
        except SecretLocked as error:
            raise SecretLocked(
                f"{reason.format(row['path'])}: a change needs a session that may open them. {error.message}",
                **error.details,
            ) from error
