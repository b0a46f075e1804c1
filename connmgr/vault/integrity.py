"""The authentication codes of a whole vault: verified, written by an upgrade, and renewed with another key."""

from __future__ import annotations

import sqlalchemy as sa

from connmgr.errors import ConnmgrError, VaultUnavailable
from connmgr.secrets.principals import VAULT, unwrap_vault
from connmgr.secrets.vault_key import KeyStore, VaultKey, load_from
from connmgr.vault import category_rows, connection_rows, dependencies, documents, facts, principal_rows, schema
from connmgr.vault.database import Database
from connmgr.vault.schema import KEY_VERIFIER, VERIFIER, chunks, connection

CATEGORIES_SINCE, DOCUMENTS_SINCE, FACTS_SINCE = "0002", "0006", "0008"
"""The revisions of the schema that gave these rows their authentication codes."""

WRITE_SECONDS = 300.0
"""Longest wait of a rotation's transaction for other writers."""

_SET_MAC = sa.update(connection).where(connection.c.id == sa.bindparam("uuid")).values(mac=sa.bindparam("code"))


def faults(database: Database, key: VaultKey) -> list[str]:
    """Return a message for each record, category and principal whose authentication code is wrong.

    A vault with an older schema, which the next start upgrades, has fewer codes.
    :raises ConnmgrError: it cannot be read.
    """

    def look(tx: sa.Connection) -> list[str]:
        revision = schema.look(tx).revision or schema.REVISIONS[-1]
        current = principal_rows.FORMATS[revision] == principal_rows.FORMAT
        messages = []
        try:
            principal_rows.load(tx, key, principal_rows.FORMATS[revision])
        except ConnmgrError as error:
            messages.append(error.message)
        if revision >= CATEGORIES_SINCE:
            messages += category_rows.faults(tx, key)
        if revision >= DOCUMENTS_SINCE:
            messages += documents.faults(tx, key)
        if revision >= FACTS_SINCE:
            messages += facts.faults(tx, key)
        if current:
            return messages + [error.message for error in dependencies.faults(tx, key)]
        return messages + _faults_before_ways(tx, key)

    return database.read(look)


def _faults_before_ways(tx: sa.Connection, key: VaultKey) -> list[str]:
    messages = []
    for row in connection_rows.every(tx).values():
        try:
            connection_rows.verify(row, key, connection_rows.BEFORE_WAYS)
        except ConnmgrError as error:
            messages.append(error.message)
    return messages


def upgrade(tx: sa.Connection, key: VaultKey) -> bool:
    """Upgrade the vault of ``key`` in a transaction that excludes other writers; return whether it was empty.

    :raises StartupError: it is not a vault, or a newer one.
    :raises IntegrityError: the principals were changed outside of connmgr.
    :raises VaultUnavailable: the vault has another key.
    """
    # Two daemons of a PostgreSQL vault may start at once. The transaction holds the lock of all who write, so the first
    # one upgrades, and the second finds nothing to do. A daemon with an older program is refused at its start. One that
    # runs already refuses the principals, and so all secrets, if their common code has another format since.
    before = schema.upgrade(tx)
    if before is not None and principal_rows.FORMATS[before] != principal_rows.FORMAT:
        # Only if the vault never had these codes, which the code of its principals proves. Otherwise an attacker with
        # access to the database could remove the codes and have forged rows authenticated.
        principals = principal_rows.load(tx, key, principal_rows.FORMATS[before])
        if before == schema.REVISIONS[0]:
            category_rows.authenticate(tx, key)
        dependencies.bind_all(tx, key)
        principal_rows.replace(tx, key, principals)
    return before is None


def rotate(database: Database, store: KeyStore) -> None:
    """Give the vault another key, and rewrap and authenticate all rows with it; sealed secrets stay.

    If the process is killed, the next start finds the key that the vault accepts. The caller holds the vault's lock.
    :raises StartupError, IntegrityError, VaultUnavailable: nothing was changed.
    """
    old = load_from(store, create=False, verifier=database.key_verifier)
    new = VaultKey.generate()
    store.write_next(new)
    # Whoever has the old key opens all that was sealed to the vault, also later, with what it has wrapped.
    database.write(lambda tx: _rekey(tx, old, new), timeout=WRITE_SECONDS, erases=True)
    store.promote()


def _rekey(tx: sa.Connection, old: VaultKey, new: VaultKey) -> None:
    verifier = tx.scalar(VERIFIER)
    if verifier is None or not old.matches(verifier):
        raise VaultUnavailable("Another daemon has rotated the vault's key: get the new key from there.")
    upgrade(tx, old)
    principals = principal_rows.load(tx, old)
    private = unwrap_vault(principals[VAULT], old.wrapping)
    principal_rows.replace(tx, new, {**principals, VAULT: principals[VAULT].rewrapped(private, new.wrapping)})
    for ids in chunks(tx.scalars(sa.select(connection.c.id)).all()):
        rows = [dict(row) for row in tx.execute(sa.select(connection).where(connection.c.id.in_(ids))).mappings()]
        for row in rows:
            connection_rows.verify(row, old)
        tx.execute(_SET_MAC, [{"uuid": row["id"], "code": connection_rows.mac(row, new)} for row in rows])
    category_rows.verify(tx, old)
    category_rows.authenticate(tx, new)
    documents.authenticate(tx, old, new)
    facts.authenticate(tx, old, new)
    principal_rows.put_meta(tx, KEY_VERIFIER, new.verifier())
