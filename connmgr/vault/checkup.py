"""Looks a vault over without changing it, while a daemon may be at work on it."""

from __future__ import annotations

import sqlalchemy as sa

from connmgr.errors import ConnmgrError
from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import principal_rows, record
from connmgr.vault.database import Database
from connmgr.vault.tables import connection


def faults(database: Database, key: VaultKey) -> list[str]:
    """Return what is wrong in the vault: each record and the set of principals whose authentication code is false.

    :raises ConnmgrError: it cannot be read.
    """

    def look(tx: sa.Connection) -> list[str]:
        found = []
        try:
            principal_rows.load(tx, key)
        except ConnmgrError as error:
            found.append(error.message)
        for row in tx.execute(sa.select(connection)).mappings():
            try:
                record.verify(row, key)
            except ConnmgrError as error:
                found.append(error.message)
        return found

    return database.read(look)
