"""Writes stored connections within a transaction: each row is verified first, and gets a new authentication code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import sqlalchemy as sa

from connmgr.errors import SecretLocked
from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import record, rows, sealed, way
from connmgr.vault.path import SEPARATOR
from connmgr.vault.record import Row
from connmgr.vault.tables import connection as table
from connmgr.vault.tables import now
from connmgr.vault.tree import chunks, closure

Permission = Callable[[Sequence[Mapping[str, Any]]], None]
"""Raises :class:`connmgr.errors.SecretLocked` unless the author of a change may open these sealed secrets."""


Passwords = Callable[[sa.Connection, Mapping[str, str]], Mapping[str, Mapping[str, Any]]]
"""Returns the sealed passwords for sudo of connections, which are given with their categories, by their ids."""


def without_access(secrets: Sequence[Mapping[str, Any]]) -> None:
    """Refuse changes that affect secrets."""
    if secrets:
        raise SecretLocked("Nothing is unlocked.", principals=[])


def insert(
    tx: sa.Connection, key: VaultKey, row: dict[str, Any], targets: Iterable[str], folder: str | None = None
) -> None:
    """Store a new row, which runs over ``targets``, at its place in the tree."""
    placed = row | rows.place(tx, row, folder)
    rows.insert(tx, [placed | {"mac": record.mac(placed, key)}], {row["id"]: targets})


def change(
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
    connections that tokens have set then stay. Return the ids of the rows below it that
    moved with it to another category.
    :raises connmgr.errors.IntegrityError: a row was changed outside of connmgr.
    """
    before = _checked(key, rows.one(tx, id))
    after = before | changes
    if token and {"data", "category"} & changes.keys():
        after["cache"] = rows.marked(after["cache"], token)
    elif token is None and "data" in changes:
        after["cache"] = rows.marked(after["cache"], None)
    if after["category"] != before["category"]:
        rows.require_category(tx, after["category"])
    over: Mapping[str, Row] = {}
    if targets is not None:
        over = way.verified(tx, key, targets)
        after["way"] = way.new_digest(tx, before, targets, over)
        rows.run_over(tx, id, targets)
    after |= rows.place(tx, after, rows.folder_of(tx, before))
    above = []
    if (after["data"], after["way"]) != (before["data"], before["way"]):
        above = way.retied_dependents(tx, key, before, after)
        typed = passwords(tx, {row["id"]: row["category"] for row in (before, *above)})
        sudo = [(row, [typed[row["id"]]]) for row in (before, *above) if row["id"] in typed]
        _require_permission(_secrets_of(above), permits, "Secrets of {} go over this connection")
        _require_permission(sudo, permits, "The password for sudo on {} goes over this connection")
        _require_permission(_secrets_of(over.values()), permits, "This connection runs over {} with its secrets")
    _store(tx, key, [after, *above])
    return _follow(tx, key, before, after, token)


def move(tx: sa.Connection, key: VaultKey, categories: Iterable[str], to: str, token: str | None = None) -> None:
    """Move the connections in ``categories`` to the category ``to``; ``token`` is as in :func:`change`."""
    for some in chunks(categories):
        found = tx.execute(sa.select(table).where(table.c.category.in_(some))).mappings().all()
        checked = [_checked(key, row) for row in found]
        _store(
            tx,
            key,
            [
                row
                | {"category": to, "last_modified": now()}
                | ({} if token is None else {"cache": rows.marked(row["cache"], token)})
                for row in checked
            ],
        )


def _checked(key: VaultKey, row: Row) -> dict[str, Any]:
    record.verify(row, key)
    return dict(row)


def _store(tx: sa.Connection, key: VaultKey, changed: Iterable[dict[str, Any]]) -> None:
    rows.update(tx, [row | {"mac": record.mac(row, key)} for row in changed])


def _follow(tx: sa.Connection, key: VaultKey, before: Row, after: Row, token: str | Literal[False] | None) -> list[str]:
    """Give the rows below a changed row its new path, and its new category if they shared the old one."""
    if (before["path"], before["category"]) == (after["path"], after["category"]):
        return []
    moved = []
    for some in chunks(closure(tx, [before["id"]], table, "id", "parent")[1:]):
        below = [_checked(key, row) for row in rows.by_id(tx, some).values()]
        for row in below:
            row["path"] = after["path"] + row["path"][len(before["path"]) :]
            row["depth"] = row["path"].count(SEPARATOR) + 1
            if row["category"] == before["category"] != after["category"]:
                row["category"] = after["category"]
                row["cache"] = rows.marked(row["cache"], token) if token else row["cache"]
                moved.append(row["id"])
        _store(tx, key, below)
    return moved


def _secrets_of(some: Iterable[Row]) -> Iterator[tuple[Row, list[Mapping[str, Any]]]]:
    return ((row, list(sealed.within(json.loads(row["data"])))) for row in some)


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
