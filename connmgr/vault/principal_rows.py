"""The table of principals: reading verifies that every row is authentic and none is missing."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from connmgr.errors import IntegrityError, VaultUnavailable
from connmgr.secrets.passphrases import Cost
from connmgr.secrets.principals import DAMAGED, VAULT, Principal, new_principal
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault.schema import REVISIONS, VERIFIER, meta, principal

PRINCIPALS_MAC = "principals_mac"
"""The row of ``meta`` that authenticates the set of principals, so that none can be removed or restored."""

# The first byte of the code of all principals. The record of one begins with 1, so no code is valid for both. Each
# schema with other codes has its own, so no vault can pass for an older one, whose codes an upgrade would renew.
FORMATS = {"0001": 2, "0002": 3, **dict.fromkeys(REVISIONS[2:], 4)}
FORMAT = FORMATS[REVISIONS[-1]]

# Built once: principals are read whenever a secret is sealed or opened.
_ALL = sa.select(
    principal, sa.select(meta.c.value).where(meta.c.name == PRINCIPALS_MAC).scalar_subquery().label("mac_of_all")
)


def load(tx: sa.Connection, key: VaultKey, format: int = FORMAT) -> dict[str, Principal]:
    """Return all principals by name; ``format`` is the format of their common code.

    :raises IntegrityError: a row was changed, added, removed or restored outside of connmgr.
    :raises VaultUnavailable: the vault's key was rotated since ``key`` was loaded.
    """
    rows = tx.execute(_ALL).all()
    mac_of_all = rows[0].mac_of_all if rows else b""
    try:
        principals = {row.name: _principal(row) for row in rows}
        macs = _macs(key, principals)
        authentic = all(hmac.compare_digest(row.mac, macs[row.name]) for row in rows)
        authentic &= hmac.compare_digest(mac_of_all, _mac_of_all(key, macs, format)) and VAULT in principals
    except (AttributeError, TypeError, ValueError, struct.error) as error:
        # SQLite keeps values of any type in any column.
        raise IntegrityError(DAMAGED) from error
    if not authentic:
        check_key(tx, key)
        raise IntegrityError(DAMAGED)
    return principals


def check_key(tx: sa.Connection, key: VaultKey) -> None:
    """Raise :class:`VaultUnavailable` if the vault's key was rotated, which is not tampering."""
    if not key.matches(tx.scalar(VERIFIER) or b""):
        raise VaultUnavailable("The vault's key was rotated: give this daemon the new key and restart it.")


def has_code(row: Mapping[Any, Any], code: Callable[[], bytes]) -> bool:
    """Whether the authentication code of a row of any table is ``code``."""
    try:
        return hmac.compare_digest(code(), row["mac"])
    except (AttributeError, TypeError, ValueError):
        # SQLite keeps values of any type in any column.
        return False


def replace(tx: sa.Connection, key: VaultKey, principals: dict[str, Principal]) -> None:
    """Replace the table's content with ``principals``, within the transaction ``tx``."""
    macs = _macs(key, principals)
    tx.execute(sa.delete(principal))
    tx.execute(sa.insert(principal), [_row(each, macs[name]) for name, each in principals.items()])
    put_meta(tx, PRINCIPALS_MAC, _mac_of_all(key, macs))


def seed(tx: sa.Connection, key: VaultKey) -> None:
    """Store the principal of a new vault; in an existing vault its absence is tampering."""
    replace(tx, key, {VAULT: new_principal(VAULT, key.wrapping)[0]})


def put_meta(tx: sa.Connection, name: str, value: bytes) -> None:
    """Store a row of ``meta``, replacing one of the same name."""
    tx.execute(sa.delete(meta).where(meta.c.name == name))
    tx.execute(sa.insert(meta).values(name=name, value=value))


def _macs(key: VaultKey, principals: dict[str, Principal]) -> dict[str, bytes]:
    return {name: key.principal_mac(each.record()) for name, each in principals.items()}


def _mac_of_all(key: VaultKey, macs: dict[str, bytes], format: int = FORMAT) -> bytes:
    # Sorted, because a table has no order. The rows' own codes cannot show that a row was removed, or that an older one
    # was put back with its valid code: this one can.
    return key.principal_mac(struct.pack("<BI", format, len(macs)) + b"".join(sorted(macs.values())))


def _principal(row: sa.Row[Any]) -> Principal:
    cost = None if row.kdf_salt is None else Cost(row.kdf_opslimit, row.kdf_memlimit)
    return Principal(row.name, bytes(row.public_key), bytes(row.wrapped_key), cost, bytes(row.kdf_salt or b""))


def _row(each: Principal, mac: bytes) -> dict[str, Any]:
    return {
        "name": each.name,
        "public_key": each.public_key,
        "wrapped_key": each.wrapped_key,
        "kdf_salt": each.salt if each.cost else None,
        "kdf_opslimit": each.cost.opslimit if each.cost else None,
        "kdf_memlimit": each.cost.memlimit if each.cost else None,
        "mac": mac,
    }
