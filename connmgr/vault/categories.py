"""Categories: the tree of names that sorts connections."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from connmgr.errors import CategoryExists, ProtectedEntry
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import category_rows
from connmgr.vault.category_rows import Category
from connmgr.vault.connections import Connections, Removed, move_rows
from connmgr.vault.database import Database
from connmgr.vault.names import ALL_CONNECTIONS, DEFAULT, LOCAL, SEPARATOR, check_name, segment
from connmgr.vault.schema import Row, chunks, closure, connection
from connmgr.vault.schema import category as table
from connmgr.vault.search import CategoryQuery
from connmgr.vault.unstored import forget_within

Path = tuple[str, ...]
"""The names from the root, without it, to a category."""


class Categories:
    """The vault's categories; safe to use from several threads.

    Its methods raise :class:`connmgr.errors.VaultUnavailable` when the database does not answer, and
    :class:`connmgr.errors.IntegrityError` for a category that was changed outside of connmgr, which can only be
    removed.
    """

    def __init__(self, database: Database, key: VaultKey, connections: Connections) -> None:
        self._database = database
        self._key = key
        self._connections = connections

    def infos(self, ids: Sequence[str]) -> list[Category]:
        """Return the categories ``ids``, in their order, or raise :class:`UnknownCategory`."""
        categories = self._database.read(lambda tx: category_rows.load(tx, ids, self._key))
        return [categories[id] for id in ids]

    def each(self, ids: Collection[str]) -> dict[str, Category]:
        """Return those of the categories ``ids`` that exist and were not changed outside of connmgr."""
        return self._database.read(lambda tx: category_rows.sound(tx, ids, self._key))

    def query(self, filter: str = "*") -> list[str]:
        """Return the ids of matching categories (see :mod:`connmgr.vault.names`) in the order of their paths."""
        search = CategoryQuery(filter)
        return self._database.read(lambda tx: search.run(tx, self._key))

    def add(self, name: str, parent: str) -> str:
        """Return the id of the category ``name`` below ``parent``; add it if it is missing.

        Names with the same form in a path count as the same name, because filters could not distinguish them.
        :raises UnknownCategory: the parent does not exist.
        """
        id, own = str(uuid.uuid4()), segment(name)

        def work(tx: sa.Connection) -> str:
            above = category_rows.load(tx, [parent], self._key)[parent]
            existing = tx.scalar(sa.select(table.c.id).where(table.c.parent == parent, table.c.segment == own))
            if existing is not None:
                return category_rows.load(tx, [existing], self._key)[existing].id
            check_name(name)
            category_rows.insert(tx, self._key, id, name, parent, (*above.path, own))
            return id

        return self._database.write(work)

    def by_path(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Return the ids of the existing ones of ``paths``, which do not contain the root."""
        return self._database.read(lambda tx: self._existing(tx, paths))

    def ensure_within(self, tx: sa.Connection, paths: Iterable[Path]) -> tuple[dict[Path, str], dict[Path, str]]:
        """Create the missing categories of ``paths``, within a larger change; paths lack the root.

        Return the ids of all, and of the new ones, which may be ancestors. Names with the same form in a path count as
        the same.
        """
        every = dict.fromkeys(path[:depth] for path in paths for depth in range(len(path) + 1))
        existing = self._existing(tx, [(), *every])
        top = category_rows.load(tx, [ALL_CONNECTIONS], self._key)[ALL_CONNECTIONS]
        places = {_place(path): id for path, id in existing.items()}
        new = {}
        for path in every:
            place = _place(path)
            if place not in places:
                check_name(path[-1])
                places[place] = new[path] = str(uuid.uuid4())
                above = places[place[:-1]]
                category_rows.insert(tx, self._key, new[path], path[-1], above, (*top.path, *place))
        return {path: places[_place(path)] for path in every}, new

    def _existing(self, tx: sa.Connection, paths: Iterable[Path]) -> dict[Path, str]:
        root = category_rows.load(tx, [ALL_CONNECTIONS], self._key)[ALL_CONNECTIONS].path
        full_paths = {path: SEPARATOR.join((*root, *_place(path))) for path in paths}
        selected = sa.select(table.c.path, table.c.id)
        rows = {
            row.path: row.id
            for some in chunks(full_paths.values())
            for row in tx.execute(selected.where(table.c.path.in_(some)))
        }
        category_rows.load(tx, rows.values(), self._key)
        return {path: rows[text] for path, text in full_paths.items() if text in rows}

    def remove(
        self, ids: Iterable[str], *, children: bool = False, contents: bool = False, token: str | None = None
    ) -> Removed:
        """Remove the categories ``ids``; return the ids of all that was removed.

        With ``children`` the categories below are removed too; otherwise they move to the nearest remaining ancestor.
        With ``contents`` the connections in them are removed, with those that run over them but without the local
        machine; otherwise they move to the default category. A category that was changed outside of connmgr is removed
        only if named; its children move to the root. ``token`` is the id of the token that removes them, None for the
        owner.
        :raises UnknownCategory: one does not exist.
        :raises ProtectedEntry: a root or the default category is among them.
        :raises CategoryExists: a category would move beside one of the same name; nothing was changed.
        """
        by_id = dict.fromkeys(ids)

        def work(tx: sa.Connection) -> Removed:
            going = category_rows.stored(tx, closure(tx, by_id, table, "id", "parent") if children else by_id)
            # The place of a changed category is unknown, so it is removed only if the caller names it.
            for some in chunks(id for id in going if id not in by_id):
                category_rows.verify(tx, self._key, table.c.id.in_(some))
            for category in (ALL_CONNECTIONS, DEFAULT):
                if category in going:
                    raise ProtectedEntry("The category of all connections and the default category cannot be removed.")
            removed = self._remove_contents(tx, list(going)) if contents else Removed()
            move_rows(tx, self._key, going, DEFAULT, token)
            _move_up(tx, going, self._key)
            forget_within(tx, going)
            for some in chunks(going):
                tx.execute(table.delete().where(table.c.id.in_(some)))
            paths = {id: str(row["path"]) for id, row in going.items()}
            return replace(removed, categories=list(going), paths={**removed.paths, **paths})

        # A category may have a password for sudo.
        return self._database.write(work, erases=True)

    def seed(self, tx: sa.Connection) -> None:
        """Store the categories of a new vault."""
        category_rows.insert(tx, self._key, ALL_CONNECTIONS, "All connections", None, ("all connections",))
        category_rows.insert(tx, self._key, DEFAULT, "Default", ALL_CONNECTIONS, ("all connections", "default"))

    def _remove_contents(self, tx: sa.Connection, categories: list[str]) -> Removed:
        ids = [
            id
            for some in chunks(categories)
            for id in tx.scalars(
                sa.select(connection.c.id).where(connection.c.category.in_(some), connection.c.id != LOCAL)
            )
        ]
        return self._connections.remove_within(tx, ids)


def _place(path: Path) -> Path:
    return tuple(map(segment, path))


def _move_up(tx: sa.Connection, going: Mapping[str, Row], key: VaultKey) -> None:
    """Move the children that stay, of the categories ``going``, to the nearest ancestor that stays."""
    # The parent of a changed row is not authentic.
    above = {id: row["parent"] if category_rows.intact(row, key) else ALL_CONNECTIONS for id, row in going.items()}
    below = {id: tx.scalars(sa.select(table.c.id).where(table.c.parent == id)).all() for id in going}
    for some in chunks(going):
        # Avoids conflicts with equal names, and allows any order of deletion.
        tx.execute(table.update().where(table.c.id.in_(some)).values(parent=None))
    for id, children in below.items():
        to = above[id]
        while to in above:
            to = above[to]
        staying = [child for child in children if child not in going]
        for child in category_rows.load(tx, staying, key).values():
            _move(tx, child, category_rows.load(tx, [to], key)[to], key)


def _move(tx: sa.Connection, child: Category, to: Category, key: VaultKey) -> None:
    path = (*to.path, child.path[-1])
    rivals = sa.select(table.c.id).where(table.c.parent == to.id, table.c.segment == child.path[-1])
    if tx.scalar(rivals) is not None:
        raise CategoryExists(
            f"{SEPARATOR.join(child.path)} cannot move up: there is a category {SEPARATOR.join(path)} already. "
            "Move the connections of one of the two into the other, and remove it first."
        )
    for moved in category_rows.load(tx, closure(tx, [child.id], table, "id", "parent"), key).values():
        parent = to.id if moved.id == child.id else moved.parent
        category_rows.move(tx, key, moved.id, parent, (*path, *moved.path[len(child.path) :]))
