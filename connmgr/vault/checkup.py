"""Looks a vault over without changing it, while a daemon may be at work on it."""

from __future__ import annotations

import sqlalchemy as sa

from connmgr.errors import ConnmgrError
from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import category_rows, principal_rows, record, schema
from connmgr.vault.database import Database
from connmgr.vault.tables import connection


def faults(database: Database, key: VaultKey) -> list[str]:
    """Return what is wrong in the vault: records, categories and principals whose authentication code is false.

    In a vault of an older connmgr, which the next start brings up to date, categories have none.
    :raises ConnmgrError: it cannot be read.
    """

    def look(tx: sa.Connection) -> list[str]:
        current = schema.look(tx).revision == schema.REVISIONS[-1]
        found = []
        try:
            principal_rows.load(tx, key, principal_rows.FORMAT if current else principal_rows.BEFORE_CATEGORY_CODES)
        except ConnmgrError as error:
            found.append(error.message)
        if current:
            found += category_rows.faults(tx, key)
        for row in tx.execute(sa.select(connection)).mappings():
            try:
                record.verify(row, key)
            except ConnmgrError as error:
                found.append(error.message)
        return found

    return database.read(look)
