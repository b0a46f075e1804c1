"""A connection as it is stored: its row, and the authentication code that ties the row's parts to each other."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from connmgr.errors import IntegrityError
from connmgr.secrets.keyfile import VaultKey
from connmgr.vault.path import SEPARATOR

Row = Mapping[Any, Any]
"""A row by column names; SQLAlchemy's can be asked by column as well."""

BEFORE_WAYS, FORMAT = "connection-1", "connection-2"
"""What the authentication codes of connections begin with, in a vault of an older schema and in a current one."""

_AT_FIRST = ("id", "type", "data", "name", "path", "parent", "category")
AUTHENTICATED = (*_AT_FIRST, "way")
_COVERED = {BEFORE_WAYS: _AT_FIRST, FORMAT: AUTHENTICATED}


@dataclass(frozen=True)
class Connection:
    """A stored connection. Times are aware and in UTC."""

    id: str
    name: str
    path: tuple[str, ...]
    """Lower-cased, ``_`` for ``/``; a wrapper's path begins with that of the connection it runs in."""
    type: str
    data: dict[str, Any]
    """Without ``type``; secrets in their sealed form."""
    category: str
    way: str
    """What ties it to the connections that it runs over; see :mod:`connmgr.vault.way`."""
    created: datetime
    last_used: datetime
    last_modified: datetime
    state: dict[str, Any]
    cache: dict[str, Any]


def canonical(value: Any) -> str:
    """Return the one JSON text of ``value``: sorted members, ASCII, no blanks.

    :raises ValueError: it holds a number that JSON has not.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(data: Mapping[str, Any]) -> bytes:
    """Return the SHA-256 of a connection's ``data``, whose secrets the caller has blanked: equal ones share it.

    A member that is null counts as one that is absent. Nothing secret goes in, so that nothing can be guessed from it.
    """
    return hashlib.sha256(canonical(_without_nulls(data)).encode()).digest()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def mac(row: Row, key: VaultKey, format: str = FORMAT) -> bytes:
    """Return the authentication code of a row of the table ``connection``.

    It covers what decides where a command goes. The id, type and data: an edited host would be sent the password. The
    name, path, parent and category, because people and programs choose a connection by these: with the names of two
    rows exchanged, what was meant for a test machine would run in production. The way, because the password of an
    elevated shell goes to the machine that the connection below it names.

    It leaves out what is only told (times, state, cache), the depth, which follows from the path, and two copies of
    what stands elsewhere: the fingerprint, whose change can at worst store an equal connection twice, and the
    references, whose change makes the way another one.
    """
    return key.mac(canonical([format, *(row[name] for name in _COVERED[format])]).encode())


def intact(row: Row, key: VaultKey, format: str = FORMAT) -> bool:
    """Whether connmgr wrote this row of the table ``connection``."""
    try:
        authentic = hmac.compare_digest(mac(row, key, format), row["mac"])
        return authentic and row["depth"] == row["path"].count(SEPARATOR) + 1
    except (TypeError, ValueError):
        # SQLite keeps values of any type in any column.
        return False


def verify(row: Row, key: VaultKey, format: str = FORMAT) -> None:
    """Refuse a row of the table ``connection`` that connmgr did not write.

    :raises IntegrityError: naming the connection.
    """
    if not intact(row, key, format):
        raise _changed(row)


def _changed(row: Row) -> IntegrityError:
    advice = "remove it, or restore the vault from a backup"
    return IntegrityError(f"Connection {row['id']} was changed outside of connmgr: {advice}.", connection=row["id"])


def load(row: Row, key: VaultKey) -> Connection:
    """Return the connection of a whole row.

    :raises IntegrityError: connmgr did not write it.
    """
    verify(row, key)
    try:
        state, cache = json.loads(row["state"]), json.loads(row["cache"])
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
        way=row["way"],
        created=row["created"],
        last_used=row["last_used"],
        last_modified=row["last_modified"],
        state=state,
        cache=cache,
    )
