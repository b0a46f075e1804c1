"""A stored connection: its row, and the authentication code that binds the row's columns together."""

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
"""A row by column names; SQLAlchemy also accepts columns."""

BEFORE_WAYS, FORMAT = "connection-1", "connection-2"
"""Prefixes of the authentication codes of connections, in an older and in the current schema."""

# The code covers everything that decides where a command and its secrets go: the host, the names by which people choose
# a connection, and what it runs over. It leaves out times, state and cache; depth, which follows from the path; the
# fingerprint, because changing it can only store an equal connection twice; and references, because changing them
# changes the way.
_AT_FIRST = ("id", "type", "data", "name", "path", "parent", "category")
AUTHENTICATED = (*_AT_FIRST, "way")
_COVERED = {BEFORE_WAYS: _AT_FIRST, FORMAT: AUTHENTICATED}


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
    way: str
    """Ties it to the connections that it runs over; see :mod:`connmgr.vault.way`."""
    created: datetime
    last_used: datetime
    last_modified: datetime
    state: dict[str, Any]
    cache: dict[str, Any]


def canonical(value: Any) -> str:
    """Return the only JSON text of ``value``: members sorted, ASCII, no blanks, ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


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
    return key.mac(canonical([format, *(row[name] for name in _COVERED[format])]).encode())


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
