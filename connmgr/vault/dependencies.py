"""Dependency digests: each connection is bound to all that it runs over, so that its secrets reach nothing else.

The column ``way`` of the table ``connection`` has a digest of the rows that the connection runs over, with their own
digests. The row's authentication code covers it. If a row below is exchanged, restored to an earlier state, removed or
added, every connection above it is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from connmgr.errors import IntegrityError
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import connection_rows
from connmgr.vault.connection_rows import carriers, dependents
from connmgr.vault.schema import Row, canonical, chunks
from connmgr.vault.schema import connection as table
from connmgr.vault.schema import connection_reference as reference

_OVER = sa.select(reference).where(reference.c.source.in_(sa.bindparam("some", expanding=True)))

NO_DEPENDENCIES = ""
"""The digest of a connection that runs over nothing."""


def digest(targets: Iterable[Row]) -> str:
    """Return the digest of the rows ``targets``, which covers all that these run over."""
    hops = sorted([row["id"], row["type"], row["data"], row["way"]] for row in targets)
    return hashlib.sha256(canonical(hops).encode()).hexdigest() if hops else NO_DEPENDENCIES


def complete_digest(type: str, data: Mapping[str, Any], dependency_digest: str | None) -> str:
    """Return the digest of a connection and of all that it runs over."""
    return hashlib.sha256(canonical([type, data, dependency_digest]).encode()).hexdigest()


def load(tx: sa.Connection, key: VaultKey, targets: Iterable[str]) -> dict[str, Row]:
    """Return the rows ``targets`` and all that they run over.

    :raises UnknownConnection: one does not exist.
    :raises IntegrityError: one of them was changed outside of connmgr.
    """
    ids = carriers(tx, targets)
    rows, over = connection_rows.by_id(tx, ids), targets_of(tx, ids)
    for row in rows.values():
        connection_rows.verify(row, key)
        if not _is_sound(row, rows, over):
            raise tampered(row["id"])
    return rows


def new_digest(tx: sa.Connection, row: Row, targets: set[str], over: Mapping[str, Row]) -> str:
    """Return the digest for the stored connection ``row`` when it runs over ``targets``, which are in ``over``.

    :raises IntegrityError: ``row`` keeps its targets, and they do not match its digest.
    """
    anew = digest(over[id] for id in targets)
    # With other targets the digest differs because of the change itself, which somebody with the right to it makes.
    if anew != row["way"] and targets == set(targets_of(tx, [row["id"]])[row["id"]]):
        raise tampered(row["id"])
    return anew


def tampered(id: str) -> IntegrityError:
    """Return the error for a connection whose dependency digest does not match the rows below it."""
    return IntegrityError(
        f"The connections that {id} runs over were changed outside of connmgr: let it run over others, remove it, or "
        "restore the vault from a backup.",
        connection=id,
    )


def rebound_dependents(tx: sa.Connection, key: VaultKey, before: Row, after: Row) -> list[dict[str, Any]]:
    """Return the rows that run over ``before``, bound to ``after`` instead.

    Rows that were changed outside of connmgr, or whose digest does not match, are left out and stay refused.
    """
    ids = dependents(tx, [before["id"]])[1:]
    over = targets_of(tx, ids)
    rows = dict(connection_rows.by_id(tx, {*ids, *(target for targets in over.values() for target in targets)}))
    sound = [id for id in ids if connection_rows.intact(rows[id], key) and _is_sound(rows[id], rows, over)]
    # Sound was judged by the rows as they were; bound is to the row as it will be.
    rows[before["id"]] = after
    return list(_rebound(sound, rows, over))


def bind_all(tx: sa.Connection, key: VaultKey) -> None:
    """Bind every connection of a vault with an older schema to the connections below it, and authenticate it.

    Rows that were changed outside of connmgr stay refused.
    """
    rows: dict[str, Row] = {row["id"]: row for row in tx.execute(sa.select(table)).mappings()}
    sound = [id for id, row in rows.items() if connection_rows.intact(row, key, connection_rows.BEFORE_WAYS)]
    bound = _rebound(sound, rows, targets_of(tx, rows))
    connection_rows.update(tx, [row | {"mac": connection_rows.mac(row, key)} for row in bound])


def faults(tx: sa.Connection, key: VaultKey) -> Iterator[IntegrityError]:
    """Yield the faults of the connections of a vault whose connections have the codes of today."""
    rows = connection_rows.every(tx)
    over = targets_of(tx, rows)
    for id, row in rows.items():
        try:
            connection_rows.verify(row, key)
        except IntegrityError as error:
            yield error
        else:
            if not _is_sound(row, rows, over):
                yield tampered(id)


def _rebound(ids: Iterable[str], rows: dict[str, Row], over: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    # A digest covers the digests of the rows below, so those come first.
    for id in _in_order(ids, over):
        rows[id] = bound = {**rows[id], "way": digest(rows[target] for target in over[id])}
        yield bound


def _is_sound(row: Row, rows: Mapping[str, Row], over: Mapping[str, list[str]]) -> bool:
    return bool(row["way"] == digest(rows[target] for target in over[row["id"]]))


def targets_of(tx: sa.Connection, ids: Iterable[str]) -> dict[str, list[str]]:
    """Return for each of ``ids`` the connections that it runs over directly."""
    targets: dict[str, list[str]] = {id: [] for id in ids}
    for some in chunks(targets):
        for source, target in tx.execute(_OVER, {"some": some}):
            targets[source].append(target)
    return targets


def _in_order(ids: Iterable[str], over: Mapping[str, list[str]]) -> list[str]:
    """Return ``ids`` in an order in which each connection follows the connections that it runs over."""
    unordered, ordered = set(ids), dict[str, None]()
    # Iterative, because a chain may be longer than Python's stack.
    for start in unordered:
        pending = [(start, iter(over[start]))]
        entered = {start}
        while pending:
            id, targets = pending[-1]
            further = next(
                (target for target in targets if target in unordered - entered and target not in ordered), None
            )
            if further is None:
                ordered.setdefault(id)
                pending.pop()
            else:
                entered.add(further)
                pending.append((further, iter(over[further])))
    return list(ordered)
