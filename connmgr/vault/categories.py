"""Categories: a tree of names that connections are sorted into."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from connmgr.errors import InvalidRequest, ProtectedEntry, UnknownCategory
from connmgr.vault.connections import Connections
from connmgr.vault.database import Database
from connmgr.vault.path import SEPARATOR, segment
from connmgr.vault.query import CategoryQuery
from connmgr.vault.tables import category as table
from connmgr.vault.tables import connection, now
from connmgr.vault.tree import chunks, closure
from connmgr.vault.wellknown import ALL_CONNECTIONS, DEFAULT, LOCAL


@dataclass(frozen=True)
class Category:
    """A stored category. Times are aware and in UTC."""

    id: str
    parent: str | None
    """None for a root."""
    name: str
    path: tuple[str, ...]
    """From the root; lower-cased, ``_`` for ``/``."""
    created: datetime
    last_used: datetime
    """When one of its connections was, or it was made."""
    last_modified: datetime
    config: dict[str, Any]


class Categories:
    """The vault's categories; safe to use from several threads.

    Its methods raise :class:`connmgr.errors.VaultUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, connections: Connections) -> None:
        self._database = database
        self._connections = connections

    def infos(self, ids: Sequence[str]) -> list[Category]:
        """Return the categories ``ids``, in their order.

        :raises UnknownCategory: one does not exist.
        """
        found = self._database.read(lambda tx: _by_id(tx, ids))
        return [found[id] for id in ids]

    def query(self, filter: str = "*") -> list[str]:
        """Return the ids of the categories whose path, with or without the root, matches, in the order of their paths.

        :raises InvalidRequest: a malformed filter; see :mod:`connmgr.vault.glob`.
        """
        return self._database.read(CategoryQuery(filter).run)

    def add(self, name: str, parent: str) -> str:
        """Return the id of the category ``name`` below ``parent``, made if there is none.

        Names that are alike in a path are the same name: nothing could tell such categories apart.
        :raises UnknownCategory: the parent does not exist.
        """
        id, own = str(uuid.uuid4()), segment(name)

        def work(tx: sa.Connection) -> str:
            above = _by_id(tx, [parent])[parent]
            existing = tx.scalar(sa.select(table.c.id).where(table.c.parent == parent, table.c.segment == own))
            if existing is not None:
                return str(existing)
            _insert(tx, id, name, parent, (*above.path, own))
            return id

        return self._database.write(work)

    def remove(self, ids: Iterable[str], *, children: bool = False, contents: bool = False) -> list[str]:
        """Remove the categories ``ids``; return the ids of the connections that were removed with them.

        With ``children`` the categories below go too; otherwise they move up to the nearest that stays. With
        ``contents`` the connections in what is removed go too, and those that run over them, but for the local machine;
        what stays moves to the default category.
        :raises UnknownCategory: one does not exist.
        :raises ProtectedEntry: a root or the default category is among them.
        :raises InvalidRequest: a category would move to where one of its name is already.
        """
        named = list(dict.fromkeys(ids))

        def work(tx: sa.Connection) -> list[str]:
            found = _by_id(tx, named)
            for category in found.values():
                if category.parent is None or category.id == DEFAULT:
                    raise ProtectedEntry(f"The category {SEPARATOR.join(category.path)} cannot be removed.")
            going = _by_id(tx, closure(tx, named, table, "id", "parent")) if children else found
            if DEFAULT in going:
                raise ProtectedEntry("The default category cannot be removed.")
            removed = self._remove_contents(tx, list(going)) if contents else []
            self._connections.move_within(tx, going, DEFAULT)
            if not children:
                _move_up(tx, going)
            _delete(tx, going.values())
            return removed

        return self._database.write(work)

    def seed(self, tx: sa.Connection) -> None:
        """Store the categories that every vault has."""
        _insert(tx, ALL_CONNECTIONS, "All connections", None, ("all connections",))
        _insert(tx, DEFAULT, "Default", ALL_CONNECTIONS, ("all connections", "default"))

    def _remove_contents(self, tx: sa.Connection, categories: list[str]) -> list[str]:
        ids = [
            id
            for some in chunks(categories)
            for id in tx.scalars(
                sa.select(connection.c.id).where(connection.c.category.in_(some), connection.c.id != LOCAL)
            )
        ]
        return self._connections.remove_within(tx, ids)


def _by_id(tx: sa.Connection, ids: Iterable[str]) -> dict[str, Category]:
    wanted = dict.fromkeys(ids)
    found = {
        row["id"]: _load(row)
        for some in chunks(wanted)
        for row in tx.execute(sa.select(table).where(table.c.id.in_(some))).mappings()
    }
    for id in wanted:
        if id not in found:
            raise UnknownCategory(id)
    return found


def _load(row: Any) -> Category:
    return Category(
        id=row["id"],
        parent=row["parent"],
        name=row["name"],
        path=tuple(row["path"].split(SEPARATOR)),
        created=row["created"],
        last_used=row["last_used"],
        last_modified=row["last_modified"],
        config=json.loads(row["config"]),
    )


def _insert(tx: sa.Connection, id: str, name: str, parent: str | None, path: tuple[str, ...]) -> None:
    at = now()
    place = {"segment": path[-1], "path": SEPARATOR.join(path), "depth": len(path)}
    times = {"created": at, "last_used": at, "last_modified": at}
    tx.execute(table.insert().values(id=id, name=name, parent=parent, config="{}", **place, **times))


def _move_up(tx: sa.Connection, going: dict[str, Category]) -> None:
    """Give the children that stay, of categories that go, to the nearest ancestor that stays."""
    for some in chunks(going):
        # Out of the way of namesakes: no name has a separator.
        tx.execute(table.update().where(table.c.id.in_(some)).values(segment=SEPARATOR + table.c.id))
    for category in going.values():
        to = category
        while to.id in going:
            to = _by_id(tx, [str(to.parent)])[str(to.parent)]
        children = tx.scalars(sa.select(table.c.id).where(table.c.parent == category.id)).all()
        for child in _by_id(tx, [id for id in children if id not in going]).values():
            _move(tx, child, to)


def _move(tx: sa.Connection, child: Category, to: Category) -> None:
    path = (*to.path, child.path[-1])
    taken = sa.select(table.c.id).where(table.c.parent == to.id, table.c.segment == child.path[-1])
    if tx.scalar(taken) is not None:
        raise InvalidRequest(f"There is a category {SEPARATOR.join(path)} already; remove the children too.")
    tx.execute(table.update().where(table.c.id == child.id).values(parent=to.id))
    for moved in _by_id(tx, closure(tx, [child.id], table, "id", "parent")).values():
        now_at = (*path, *moved.path[len(child.path) :])
        values = {"path": SEPARATOR.join(now_at), "depth": len(now_at), "last_modified": now()}
        tx.execute(table.update().where(table.c.id == moved.id).values(values))


def _delete(tx: sa.Connection, going: Iterable[Category]) -> None:
    # Children before the parents that they name.
    deepest_first = sorted(going, key=lambda category: len(category.path), reverse=True)
    for some in chunks(category.id for category in deepest_first):
        tx.execute(table.delete().where(table.c.id.in_(some)))
