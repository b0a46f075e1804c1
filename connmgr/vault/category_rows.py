"""Rows of the table ``category``: reading verifies their authentication codes, writing creates them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from connmgr.errors import IntegrityError, UnknownCategory
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault.names import SEPARATOR
from connmgr.vault.principal_rows import check_key, has_code
from connmgr.vault.schema import Row, canonical, chunks, now
from connmgr.vault.schema import category as table

# Differs from the prefix of connections, so that no code is valid for both.
_FORMAT = "category-1"
_COVERED = (table.c.id, table.c.parent, table.c.name, table.c.segment, table.c.path, table.c.depth, table.c.config)
_AUTHENTICATED = sa.select(*_COVERED, table.c.mac)
_SET_MAC = table.update().where(table.c.id == sa.bindparam("row")).values(mac=sa.bindparam("code"))


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
    """When one of its connections was last used, or when it was made."""
    last_modified: datetime
    config: dict[str, Any]


def mac(row: Row, key: VaultKey) -> bytes:
    """Return the authentication code of a row, which covers everything but times."""
    return key.mac(canonical([_FORMAT, *(row[column.name] for column in _COVERED)]).encode())


def intact(row: Row, key: VaultKey) -> bool:
    return has_code(row, lambda: mac(row, key))


def verify(tx: sa.Connection, key: VaultKey, matching: sa.ColumnElement[bool] | None = None) -> list[str]:
    """Return the ids of the rows ``matching``, all of them authentic.

    :raises IntegrityError: one is not authentic.
    :raises VaultUnavailable: the vault's key was rotated.
    """
    selected = _AUTHENTICATED if matching is None else _AUTHENTICATED.where(matching)
    ids = []
    for row in tx.execute(selected).mappings():
        _check(tx, row, key)
        ids.append(row["id"])
    return ids


def faults(tx: sa.Connection, key: VaultKey) -> list[str]:
    """Return a message for each row that is not authentic."""
    return [_changed(row).message for row in tx.execute(_AUTHENTICATED).mappings() if not intact(row, key)]


def stored(tx: sa.Connection, ids: Iterable[str], selected: sa.Select[Any] = _AUTHENTICATED) -> dict[str, Row]:
    """Return the rows ``ids``, authentic or not, by default without their times.

    :raises UnknownCategory: for the first that does not exist.
    """
    unique_ids = dict.fromkeys(ids)
    rows = _existing(tx, unique_ids, selected)
    for id in unique_ids:
        if id not in rows:
            raise UnknownCategory(id)
    return rows


def sound(tx: sa.Connection, ids: Iterable[str], key: VaultKey) -> dict[str, Category]:
    """Return the categories of ``ids`` that exist and are authentic."""
    categories = {}
    for id, row in _existing(tx, ids, sa.select(table)).items():
        with suppress(IntegrityError):
            categories[id] = _category(tx, row, key)
    return categories


def _existing(tx: sa.Connection, ids: Iterable[str], selected: sa.Select[Any]) -> dict[str, Row]:
    return {
        row["id"]: row for some in chunks(ids) for row in tx.execute(selected.where(table.c.id.in_(some))).mappings()
    }


def load(tx: sa.Connection, ids: Iterable[str], key: VaultKey) -> dict[str, Category]:
    """Return the categories ``ids``, verified, or raise :class:`UnknownCategory`."""
    return {id: _category(tx, row, key) for id, row in stored(tx, ids, sa.select(table)).items()}


def insert(tx: sa.Connection, key: VaultKey, id: str, name: str, parent: str | None, path: tuple[str, ...]) -> None:
    """Store a new category."""
    at = now()
    row = {"id": id, "name": name, "parent": parent, "segment": path[-1], "config": "{}", **_place(path)}
    times = {"created": at, "last_used": at, "last_modified": at}
    tx.execute(table.insert().values(**row, **times, mac=mac(row, key)))


def move(tx: sa.Connection, key: VaultKey, id: str, parent: str | None, path: tuple[str, ...]) -> None:
    """Give an authentic category another parent and path."""
    row = {**stored(tx, [id])[id], "parent": parent, **_place(path)}
    values = {name: row[name] for name in ("parent", "path", "depth")}
    tx.execute(table.update().where(table.c.id == id).values(**values, last_modified=now(), mac=mac(row, key)))


def authenticate(tx: sa.Connection, key: VaultKey) -> None:
    """Give every row its code under ``key`` without verifying it; the caller vouches for the rows.

    :raises IntegrityError: a value is of another type than its column's.
    """
    for row in tx.execute(_AUTHENTICATED).mappings().all():
        try:
            code = mac(row, key)
        except TypeError:
            # SQLite keeps values of any type in any column.
            raise _changed(row) from None
        tx.execute(_SET_MAC, {"row": row["id"], "code": code})


def _check(tx: sa.Connection, row: Row, key: VaultKey) -> None:
    if not intact(row, key):
        # Under a rotated key no row is authentic, though nobody tampered with them.
        check_key(tx, key)
        raise _changed(row)


def _changed(row: Row) -> IntegrityError:
    advice = "remove it, or restore the vault from a backup"
    return IntegrityError(f"Category {row['id']} was changed outside of connmgr: {advice}.", category=row["id"])


def _category(tx: sa.Connection, row: Row, key: VaultKey) -> Category:
    _check(tx, row, key)
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


def _place(path: tuple[str, ...]) -> dict[str, Any]:
    return {"path": SEPARATOR.join(path), "depth": len(path)}
