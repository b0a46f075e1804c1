"""Verifies a whole vault without changing it, even while a daemon uses it."""

from __future__ import annotations

import sqlalchemy as sa

from connmgr.errors import ConnmgrError
from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import category_rows, documents, principal_rows, record, schema, way
from connmgr.vault.database import Database
from connmgr.vault.tables import connection


def faults(database: Database, key: VaultKey) -> list[str]:
    """Return a message for each record, category and principal whose authentication code is wrong.

    A vault with an older schema, which the next start upgrades, has fewer codes.
    :raises ConnmgrError: it cannot be read.
    """

    def look(tx: sa.Connection) -> list[str]:
        revision = schema.look(tx).revision or schema.REVISIONS[-1]
        current = principal_rows.FORMATS[revision] == principal_rows.FORMAT
        found = []
        try:
            principal_rows.load(tx, key, principal_rows.FORMATS[revision])
        except ConnmgrError as error:
            found.append(error.message)
        if revision != schema.REVISIONS[0]:
            found += category_rows.faults(tx, key)
        if revision == schema.REVISIONS[-1]:
            found += documents.faults(tx, key)
        if current:
            return found + [error.message for error in way.faults(tx, key)]
        return found + _faults_before_ways(tx, key)

    return database.read(look)


def _faults_before_ways(tx: sa.Connection, key: VaultKey) -> list[str]:
    columns = [column for column in connection.c if column is not connection.c.way]
    found = []
    for row in tx.execute(sa.select(*columns)).mappings():
        try:
            record.verify(row, key, record.BEFORE_WAYS)
        except ConnmgrError as error:
            found.append(error.message)
    return found
