"""The way of a connection: a digest of all that it runs over, so that its secrets reach nothing else.

The ``way`` of a row in the table ``connection`` is a digest of the rows that it runs over, with their ways. The row's
authentication code covers it. If a row is exchanged, restored to an earlier state, removed or added, every connection
above it is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from connmgr.errors import IntegrityError
from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import record, rows
from connmgr.vault.record import Row, canonical
from connmgr.vault.tables import connection as table
from connmgr.vault.tables import connection_reference as reference
from connmgr.vault.tree import carriers, chunks, dependents

_OVER = sa.select(reference).where(reference.c.source.in_(sa.bindparam("some", expanding=True)))

NOWHERE = ""
"""The digest of a connection that runs over nothing."""


def digest(targets: Iterable[Row]) -> str:
    """Return the digest of the rows ``targets``, which covers all that these run over."""
    hops = sorted([row["id"], row["type"], row["data"], row["way"]] for row in targets)
    return hashlib.sha256(canonical(hops).encode()).hexdigest() if hops else NOWHERE


def whole(type: str, data: Mapping[str, Any], way: str | None) -> str:
    """Return the digest of a connection and of all that it runs over."""
    return hashlib.sha256(canonical([type, data, way]).encode()).hexdigest()


def verified(tx: sa.Connection, key: VaultKey, targets: Iterable[str]) -> dict[str, Row]:
    """Return the rows ``targets`` and all that they run over.

    :raises UnknownConnection: one does not exist.
    :raises IntegrityError: one, or what it runs over, was changed outside of connmgr.
    """
    ids = carriers(tx, targets)
    found, over = rows.by_id(tx, ids), targets_of(tx, ids)
    for row in found.values():
        record.verify(row, key)
        if not _leads(row, found, over):
            raise tampered(row["id"])
    return found


def new_digest(tx: sa.Connection, row: Row, targets: set[str], over: Mapping[str, Row]) -> str:
    """Return the digest for the stored connection ``row`` when it runs over ``targets``, which are in ``over``.

    :raises IntegrityError: ``row`` keeps its targets, and they do not match its digest.
    """
    anew = digest(over[id] for id in targets)
    if anew != row["way"] and targets == set(targets_of(tx, [row["id"]])[row["id"]]):
        raise tampered(row["id"])
    return anew


def tampered(id: str) -> IntegrityError:
    """Return the error for a connection whose way does not match its digest."""
    return IntegrityError(
        f"The connections under {id} were changed outside of connmgr: give it others, remove it, or restore the "
        "vault from a backup.",
        connection=id,
    )


def retied_dependents(tx: sa.Connection, key: VaultKey, before: Row, after: Row) -> list[dict[str, Any]]:
    """Return the rows that run over ``before``, tied to ``after`` instead.

    Rows that were changed outside of connmgr, or whose way does not match, are left out and stay refused.
    """
    ids = dependents(tx, [before["id"]])[1:]
    over = targets_of(tx, ids)
    known = dict(rows.by_id(tx, {*ids, *(target for targets in over.values() for target in targets)}))
    sound = [id for id in ids if record.intact(known[id], key) and _leads(known[id], known, over)]
    known[before["id"]] = after
    return list(_bound(sound, known, over))


def tie_all(tx: sa.Connection, key: VaultKey) -> None:
    """Tie every connection of a vault with an older schema to those that it runs over, and authenticate it.

    Rows that were changed outside of connmgr stay refused.
    """
    known: dict[str, Row] = {row["id"]: row for row in tx.execute(sa.select(table)).mappings()}
    sound = [id for id, row in known.items() if record.intact(row, key, record.BEFORE_WAYS)]
    bound = _bound(sound, known, targets_of(tx, known))
    rows.update(tx, [row | {"mac": record.mac(row, key)} for row in bound])


def faults(tx: sa.Connection, key: VaultKey) -> Iterator[IntegrityError]:
    """Yield the faults of the connections of an up-to-date vault."""
    known: dict[str, Row] = {row["id"]: row for row in tx.execute(sa.select(table)).mappings()}
    over = targets_of(tx, known)
    for id, row in known.items():
        try:
            record.verify(row, key)
        except IntegrityError as error:
            yield error
        else:
            if not _leads(row, known, over):
                yield tampered(id)


def _bound(ids: Iterable[str], known: dict[str, Row], over: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    for id in _in_order(ids, over):
        known[id] = bound = {**known[id], "way": digest(known[target] for target in over[id])}
        yield bound


def _leads(row: Row, known: Mapping[str, Row], over: Mapping[str, list[str]]) -> bool:
    return bool(row["way"] == digest(known[target] for target in over[row["id"]]))


def targets_of(tx: sa.Connection, ids: Iterable[str]) -> dict[str, list[str]]:
    """Return for each of ``ids`` the connections that it runs over directly."""
    found: dict[str, list[str]] = {id: [] for id in ids}
    for some in chunks(found):
        for source, target in tx.execute(_OVER, {"some": some}):
            found[source].append(target)
    return found


def _in_order(ids: Iterable[str], over: Mapping[str, list[str]]) -> list[str]:
    """Return ``ids``, each after those of them that it runs over."""
    wanted, ordered = set(ids), dict[str, None]()
    # Iterative, because a chain may be longer than Python's stack.
    for start in wanted:
        pending = [(start, iter(over[start]))]
        entered = {start}
        while pending:
            id, targets = pending[-1]
            further = next((target for target in targets if target in wanted - entered and target not in ordered), None)
            if further is None:
                ordered.setdefault(id)
                pending.pop()
            else:
                entered.add(further)
                pending.append((further, iter(over[further])))
    return list(ordered)
