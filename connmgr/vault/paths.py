"""The paths of connections and categories, without their other data."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from connmgr.vault.database import Database
from connmgr.vault.tables import category, connection
from connmgr.vault.tree import chunks

# Built once, because building a statement costs more than looking up a row.
_PATHS = {
    kind: sa.select(table.c.id, table.c.path).where(table.c.id.in_(sa.bindparam("some", expanding=True)))
    for kind, table in (("connection", connection), ("category", category))
}


def paths_of(database: Database, kind: str, ids: Iterable[str]) -> dict[str, str]:
    """Return the paths of the existing ones among ``ids``, from the rows, without verification.

    ``kind`` is ``connection`` or ``category``.
    :raises connmgr.errors.VaultUnavailable: the database does not answer.
    """

    def work(tx: sa.Connection) -> dict[str, str]:
        # SQLite keeps values of any type in any column.
        return {id: str(path) for some in chunks(ids) for id, path in tx.execute(_PATHS[kind], {"some": some})}

    return database.read(work)
