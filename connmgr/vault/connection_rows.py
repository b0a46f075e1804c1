"""Stored connections as rows: the authentication code that binds a row's columns together, reading and writing.

Every function works within a transaction. Those that return rows do not verify them, unless they say so.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from connmgr.contract.message import time_to_json
from connmgr.errors import ConnectionChanged, ConnectionCycle, IntegrityError, UnknownCategory, UnknownConnection
from connmgr.plugin import AnyConnectionType, Tunnel, Wrapper
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault.names import LOCAL, SEPARATOR, segment, with_elevation
from connmgr.vault.schema import Row, Timestamp, canonical, chunks, closure, now, to_time
from connmgr.vault.schema import category as category_table
from connmgr.vault.schema import connection as table
from connmgr.vault.schema import connection_reference as reference
from connmgr.vault.schema import fact as fact_table
from connmgr.vault.schema import job as job_table

BEFORE_WAYS, FORMAT = "connection-1", "connection-2"
"""Prefixes of the authentication codes of connections, in an older and in the current schema."""

# The code covers everything that decides where a command and its secrets go: the host, the names by which people choose
# a connection, and what it runs over. It leaves out times, state and cache; depth, which follows from the path; the
# fingerprint, because changing it can only store an equal connection twice; and references, because changing them
# changes the dependency digest, the column ``way``.
_AT_FIRST = ("id", "type", "data", "name", "path", "parent", "category")
AUTHENTICATED = (*_AT_FIRST, "way")
_COVERED = {BEFORE_WAYS: _AT_FIRST, FORMAT: AUTHENTICATED}

NO_LABELS = "{}"
"""The column ``labels`` of a connection without labels."""

SET_BY_TOKEN = "setByToken"  # noqa: S105 - the name of a member
"""The member of a connection's ``cache`` with the id of the token that added it, or changed its data or category."""

_OF_FINGERPRINTS = (
    sa.select(table)
    .where(table.c.fingerprint.in_(sa.bindparam("some", expanding=True)))
    .order_by(table.c.created, table.c.id)
)

_UPDATE = table.update().where(table.c.id == sa.bindparam("row"))
_RELABEL = _UPDATE.values(
    labels=sa.bindparam("its_labels"), mac=sa.bindparam("its_mac"), last_modified=sa.bindparam("at")
)

# Built once, because building a statement costs more than looking up a row.
_BY_IDS = table.c.id.in_(sa.bindparam("ids", expanding=True))
_WHOLE = sa.select(table).where(_BY_IDS)
# Converting the times of a row takes as long as all else.
_RAW = sa.select(
    *(sa.type_coerce(column, sa.BigInteger) if isinstance(column.type, Timestamp) else column for column in table.c)
).where(_BY_IDS)
_IDS = sa.select(table.c.id).where(_BY_IDS)
_CODES = sa.select(table.c.id, table.c.mac).where(_BY_IDS)
_PLACES = sa.select(table.c.id, table.c.path, table.c.depth).where(_BY_IDS)
_BASIS = sa.select(table.c.data, table.c.way).where(table.c.id == sa.bindparam("id"))
_TARGETS = sa.select(reference.c.target).where(reference.c.source == sa.bindparam("id"))
_ONE = sa.select(table).where(table.c.id == sa.bindparam("id"))


@dataclass(frozen=True)
class Connection:
    """A stored connection. Times are aware and in UTC."""

    id: str
    name: str
    path: tuple[str, ...]
    """Lower-cased, ``_`` for ``/``; begins with the path of the connection that a wrapper runs in."""
    type: str
    data: dict[str, Any]
    """Without ``type``; secrets in sealed form."""
    category: str
    dependency_digest: str
    """Binds it to the connections that it runs over; see :mod:`connmgr.vault.dependencies`."""
    created: datetime
    last_used: datetime
    last_modified: datetime
    state: dict[str, Any]
    cache: dict[str, Any]
    labels: dict[str, str] = field(default_factory=dict)


def fingerprint(data: Mapping[str, Any]) -> bytes:
    """Return the SHA-256 of ``data``, equal for equal data; the caller blanks secrets, so that none can be guessed."""
    return hashlib.sha256(canonical(without_nulls(data)).encode()).digest()


def without_nulls(value: Any) -> Any:
    """Return a JSON value without null members of its objects, which count as not given."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
    return value


def mac(row: Row, key: VaultKey, format: str = FORMAT) -> bytes:
    """Return the authentication code of a row of the table ``connection``."""
    covered = [format, *(row[name] for name in _COVERED[format])]
    # People choose connections by their labels, too. Without labels the code is that of a schema before them.
    if (labels := row.get("labels", NO_LABELS)) != NO_LABELS:
        covered.append(labels)
    return key.mac(canonical(covered).encode())


def intact(row: Row, key: VaultKey, format: str = FORMAT) -> bool:
    try:
        authentic = hmac.compare_digest(mac(row, key, format), row["mac"])
        return authentic and row["depth"] == row["path"].count(SEPARATOR) + 1
    except (TypeError, ValueError):
        # SQLite keeps values of any type in any column.
        return False


def verify(row: Row, key: VaultKey, format: str = FORMAT) -> None:
    """Raise :class:`IntegrityError` for a row that connmgr did not write."""
    if not intact(row, key, format):
        raise _changed(row)


def _changed(row: Row) -> IntegrityError:
    advice = "remove it, or restore the vault from a backup"
    return IntegrityError(f"Connection {row['id']} was changed outside of connmgr: {advice}.", connection=row["id"])


def load(row: Row, key: VaultKey) -> Connection:
    """Return the connection of a complete row.

    :raises IntegrityError: connmgr did not write it.
    """
    verify(row, key)
    try:
        state, cache, labels = (json.loads(row[name]) for name in ("state", "cache", "labels"))
    except (TypeError, ValueError, RecursionError):
        raise _changed(row) from None
    if not isinstance(state, dict) or not isinstance(cache, dict):
        raise _changed(row)
    return Connection(
        id=row["id"],
        name=row["name"],
        path=tuple(row["path"].split(SEPARATOR)),
        type=row["type"],
        data=json.loads(row["data"]),
        category=row["category"],
        dependency_digest=row["way"],
        created=row["created"],
        last_used=row["last_used"],
        last_modified=row["last_modified"],
        state=state,
        cache=cache,
        labels=labels,
    )


class Placing(NamedTuple):
    """The part of a path before the connection's own name: the path of ``parent``, a uuid, and ``folder``."""

    parent: Any = None
    folder: str | None = None


def placing(kind: AnyConnectionType, data: Mapping[str, Any]) -> Placing:
    """Return the placing of a connection with ``data``, in which references are in the clients' form."""
    if not isinstance(kind, Wrapper | Tunnel) or not kind.via:
        return Placing()
    parent = data.get(kind.via)
    if isinstance(kind, Wrapper):
        return Placing(parent)
    # A connection on the local machine needs no path before its name.
    id = parent.get("storeId") if isinstance(parent, Mapping) else parent
    return Placing(None if isinstance(id, str) and id.lower() == LOCAL else parent, kind.folder)


def marked(cache: str, token: str | None) -> str:
    """Return a ``cache`` that says which ``token`` has set the connection; None: the owner."""
    members = {name: value for name, value in json.loads(cache).items() if name != SET_BY_TOKEN}
    return canonical(members if token is None else {**members, SET_BY_TOKEN: token})


def new(
    id: str,
    name: str,
    type: str,
    data: Mapping[str, Any],
    fingerprint: bytes,
    category: str,
    parent: str | None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a new row without place and authentication code."""
    at = now()
    return {
        "id": id,
        "name": name,
        "parent": parent,
        "type": type,
        "category": category,
        "data": canonical(data),
        "fingerprint": fingerprint,
        "state": "{}",
        "cache": "{}",
        "labels": canonical(labels or {}),
        "created": at,
        "last_used": at,
        "last_modified": at,
    }


def insert(tx: sa.Connection, rows: Sequence[Row], references: Mapping[str, Iterable[str]]) -> None:
    """Store new rows, each after its parent, and their references by their ids."""
    if rows:
        tx.execute(table.insert(), rows)
    pairs = [{"source": id, "target": target} for id, targets in references.items() for target in targets]
    if pairs:
        tx.execute(reference.insert(), pairs)


def every(tx: sa.Connection) -> dict[str, Row]:
    """Return all rows by their ids, in a vault of this or of an older schema."""
    there = {column["name"] for column in sa.inspect(tx).get_columns(table.name)}
    columns = [column for column in table.c if column.name in there]
    return {row["id"]: row for row in tx.execute(sa.select(*columns)).mappings()}


def forget_facts(tx: sa.Connection, ids: Iterable[str]) -> None:
    """Delete the facts of connections, which may lead to other machines now."""
    for some in chunks(ids):
        tx.execute(fact_table.delete().where(fact_table.c.connection.in_(some)))


def candidates(tx: sa.Connection, fingerprints: Iterable[bytes]) -> dict[bytes, list[Row]]:
    """Return the rows that may be equivalent to data of each of ``fingerprints``, oldest first."""
    by_fingerprint: dict[bytes, list[Row]] = {fingerprint: [] for fingerprint in fingerprints}
    for some in chunks(by_fingerprint):
        for row in tx.execute(_OF_FINGERPRINTS, {"some": some}).mappings():
            by_fingerprint[row["fingerprint"]].append(row)
    return by_fingerprint


def one(tx: sa.Connection, id: str) -> Row:
    """Return the row ``id``.

    :raises UnknownConnection: there is none.
    """
    row = tx.execute(_ONE, {"id": id}).mappings().one_or_none()
    if row is None:
        raise UnknownConnection(id)
    return row


def by_id(tx: sa.Connection, ids: Iterable[str]) -> dict[str, Row]:
    """Return the rows ``ids``, or raise :class:`UnknownConnection`."""
    return _by_id(tx, ids, _WHOLE)


def existing(tx: sa.Connection, ids: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return the existing ones of the rows ``ids``, as the database holds them: :func:`as_row` makes a row of each."""
    return {raw.id: tuple(raw) for some in chunks(ids) for raw in tx.execute(_RAW, {"ids": some}).all()}


def as_row(raw: tuple[Any, ...]) -> Row:
    """Return what :func:`existing` has returned as a row."""
    return {
        column.name: to_time(value) if isinstance(column.type, Timestamp) else value
        for column, value in zip(table.c, raw, strict=True)
    }


def codes(tx: sa.Connection, ids: Iterable[str]) -> dict[str, bytes]:
    """Return the authentication codes of the rows ``ids``, or raise :class:`UnknownConnection`."""
    return {id: row["mac"] for id, row in _by_id(tx, ids, _CODES).items()}


def basis(tx: sa.Connection, id: str) -> tuple[str, str] | None:
    """Return data and dependency digest of the row ``id``, or None."""
    row = tx.execute(_BASIS, {"id": id}).one_or_none()
    return None if row is None else (row.data, row.way)


def require(tx: sa.Connection, ids: Iterable[str]) -> None:
    """Raise :class:`UnknownConnection` unless all rows ``ids`` exist."""
    _by_id(tx, ids, _IDS)


def require_unchanged(tx: sa.Connection, known: Mapping[str, datetime]) -> None:
    """Return if the connections were last changed at the times that are ``known`` of them.

    :raises ConnectionChanged: one was changed later.
    """
    for id, row in by_id(tx, known).items():
        if row["last_modified"] != known[id]:
            raise ConnectionChanged(
                f"{row['path']} was changed at {time_to_json(row['last_modified'])}, after it was read, so nothing was "
                "stored: read it again, and repeat what is still to be changed."
            )


def require_category(tx: sa.Connection, id: str) -> None:
    """Raise :class:`UnknownCategory` unless the category ``id`` exists."""
    if tx.scalar(sa.select(category_table.c.id).where(category_table.c.id == id)) is None:
        raise UnknownCategory(id)


def place(tx: sa.Connection, row: Row, folder: str | None = None) -> dict[str, Any]:
    """Return path and depth of a row, which follow from its name, its existing parent and the folder there."""
    parent = row["parent"]
    return placed(row["name"], None if parent is None else _by_id(tx, [parent], _PLACES)[parent], folder)


def placed(name: str, parent: Row | None, folder: str | None = None) -> dict[str, Any]:
    """Return path and depth of a connection ``name`` below ``parent``, in a ``folder`` there if one is given."""
    above = [] if parent is None else [parent["path"]]
    path = SEPARATOR.join((*above, *([folder] if folder else []), segment(name)))
    return {"path": path, "depth": path.count(SEPARATOR) + 1}


def folder_of(tx: sa.Connection, row: Row) -> str | None:
    """Return the folder in the path of an existing row, between its parent's path and its own name."""
    parent = row["parent"]
    above = 0 if parent is None else _by_id(tx, [parent], _PLACES)[parent]["depth"]
    return SEPARATOR.join(row["path"].split(SEPARATOR)[above:-1]) or None


def run_over(tx: sa.Connection, id: str, targets: set[str]) -> None:
    """Record that ``id`` runs over exactly ``targets``.

    :raises ConnectionCycle: one of them runs over it, or is it.
    """
    if targets == set(tx.scalars(_TARGETS, {"id": id})):
        return
    if not targets.isdisjoint(dependents(tx, [id])):
        raise ConnectionCycle(f"Connection {id} would run over itself.")
    tx.execute(reference.delete().where(reference.c.source == id))
    insert(tx, (), {id: targets})


def update(tx: sa.Connection, rows: Sequence[Row]) -> None:
    """Replace existing rows."""
    if rows:
        tx.execute(_UPDATE, [{("row" if name == "id" else name): row[name] for name in row} for row in rows])


def relabel(tx: sa.Connection, rows: Sequence[Row], at: datetime) -> None:
    """Replace the labels of existing rows, whose other authenticated columns are those that ``rows`` have."""
    if rows:
        values = [{"row": row["id"], "its_labels": row["labels"], "its_mac": row["mac"], "at": at} for row in rows]
        tx.execute(_RELABEL, values)


def use(tx: sa.Connection, ids: Iterable[str]) -> None:
    """Record that ``ids`` and their categories are used now."""
    at = now()
    for some in chunks(ids):
        categories = sa.select(table.c.category).where(table.c.id.in_(some))
        tx.execute(table.update().where(table.c.id.in_(some)).values(last_used=at))
        tx.execute(category_table.update().where(category_table.c.id.in_(categories)).values(last_used=at))


def delete(tx: sa.Connection, ids: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Delete rows; the caller includes all that run over them.

    Return their jobs, by connection, and their paths.
    """
    jobs: dict[str, list[str]] = {}
    for some in chunks(ids):
        tx.execute(reference.delete().where(reference.c.source.in_(some)))
        of_these = job_table.c.connection.in_(some)
        columns = (job_table.c.connection, job_table.c.elevation, job_table.c.id)
        for connection, elevation, job in tx.execute(sa.select(*columns).where(of_these)):
            # The files of an elevated connection's jobs are another user's.
            jobs.setdefault(with_elevation(connection, elevation), []).append(job)
        tx.execute(job_table.delete().where(of_these))
    forget_facts(tx, ids)
    places = _by_id(tx, ids, _PLACES)
    # Children refer to their parents, so children are deleted first.
    for some in chunks(sorted(ids, key=lambda id: places[id]["depth"], reverse=True)):
        tx.execute(table.delete().where(table.c.id.in_(some)))
    return jobs, {id: str(row["path"]) for id, row in places.items()}


def _by_id(tx: sa.Connection, ids: Iterable[str], statement: sa.Select[Any]) -> dict[str, Row]:
    unique_ids = dict.fromkeys(ids)
    rows = _existing(tx, unique_ids, statement)
    for id in unique_ids:
        if id not in rows:
            raise UnknownConnection(id)
    return rows


def _existing(tx: sa.Connection, ids: Iterable[str], statement: sa.Select[Any]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for some in chunks(ids):
        result = tx.execute(statement, {"ids": some})
        names = list(result.keys())
        at = names.index("id")
        # A dict is read several times faster than a row of SQLAlchemy's, and all rows at once faster than one by one.
        rows.update({row[at]: dict(zip(names, row, strict=True)) for row in result.all()})
    return rows


def dependents(tx: sa.Connection, ids: Iterable[str]) -> list[str]:
    """Return the connections ``ids`` and all that run over them."""
    return closure(tx, ids, reference, "source", "target")


def carriers(tx: sa.Connection, ids: Iterable[str]) -> list[str]:
    """Return the connections ``ids`` and all that they run over."""
    return closure(tx, ids, reference, "target", "source")


def sealed_secrets(data: Any) -> Iterator[dict[str, Any]]:
    """Yield each sealed secret within the ``data`` of a connection of any type."""
    if isinstance(data, dict) and "encryptedToken" in data:
        yield data
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from sealed_secrets(each)
