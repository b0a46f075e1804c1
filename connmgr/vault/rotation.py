"""Rotation of the vault's key. The key store holds both keys until one transaction has changed the vault."""

from __future__ import annotations

import sqlalchemy as sa

from connmgr.errors import VaultUnavailable
from connmgr.secrets.keyfile import KeyStore, VaultKey, load_from
from connmgr.secrets.principals import VAULT, unwrap_vault
from connmgr.vault import category_rows, documents, principal_rows, record
from connmgr.vault.database import Database
from connmgr.vault.schema import KEY_VERIFIER
from connmgr.vault.tables import connection, meta
from connmgr.vault.tree import chunks
from connmgr.vault.upgrade import upgrade

WRITE_SECONDS = 300.0
"""Longest wait of the transaction for other writers."""

_SET_MAC = sa.update(connection).where(connection.c.id == sa.bindparam("uuid")).values(mac=sa.bindparam("code"))


def rotate(database: Database, store: KeyStore) -> None:
    """Give the vault another key, and rewrap and authenticate all rows with it; sealed secrets stay.

    If the process is killed, the next start finds the key that the vault accepts. The caller holds the vault's lock.
    :raises StartupError, IntegrityError, VaultUnavailable: nothing was changed.
    """
    old = load_from(store, create=False, verifier=database.key_verifier)
    new = VaultKey.generate()
    store.write_next(new)
    database.write(lambda tx: _rekey(tx, old, new), timeout=WRITE_SECONDS)
    store.promote()


def _rekey(tx: sa.Connection, old: VaultKey, new: VaultKey) -> None:
    stored = tx.scalar(sa.select(meta.c.value).where(meta.c.name == KEY_VERIFIER))
    if stored is None or not old.matches(stored):
        raise VaultUnavailable("Another daemon has rotated the vault's key: get the new key from there.")
    upgrade(tx, old)
    known = principal_rows.load(tx, old)
    private = unwrap_vault(known[VAULT], old.wrapping)
    principal_rows.replace(tx, new, {**known, VAULT: known[VAULT].rewrapped(private, new.wrapping)})
    for ids in chunks(tx.scalars(sa.select(connection.c.id)).all()):
        rows = [dict(row) for row in tx.execute(sa.select(connection).where(connection.c.id.in_(ids))).mappings()]
        for row in rows:
            record.verify(row, old)
        tx.execute(_SET_MAC, [{"uuid": row["id"], "code": record.mac(row, new)} for row in rows])
    category_rows.verify(tx, old)
    category_rows.authenticate(tx, new)
    documents.authenticate(tx, old, new)
    principal_rows.put_meta(tx, KEY_VERIFIER, new.verifier())
