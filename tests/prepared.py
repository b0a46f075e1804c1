"""What every daemon computes at its start, and computes alike: daemons are forked after it (tests/spawner.py).

The schema of a new vault in SQLite is such a result: its migrations run once, here, and a daemon forked from here
writes what they wrote. They run themselves in tests/vault, and in each daemon that is started in another way. So do
the plugins: they are loaded here, and a daemon forked from here has them.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from connmgr.api.app import endpoints
from connmgr.registry import Registry
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import Vault, open_database, schema

_upgrade = schema.upgrade


def _migrations_result(directory: Path) -> Sequence[str]:
    """Return the statements that make the newest schema, with the rows of its migrations, in an empty database."""
    file = directory / "schema.db"
    with closing(open_database(f"sqlite:///{file}")) as database:
        database.prepare()
        database.write(_upgrade)
    with closing(sqlite3.connect(file)) as made:
        # The first and the last one begin and end a transaction, as the caller of the upgrade does.
        return list(made.iterdump())[1:-1]


def _upgrade_from_result(connection: sa.Connection, to: str = schema.REVISIONS[-1]) -> str | None:
    """Do as :func:`connmgr.vault.schema.upgrade` does."""
    is_new = connection.dialect.name == "sqlite" and not sa.inspect(connection).get_table_names()
    if not is_new or to != schema.REVISIONS[-1]:
        return _upgrade(connection, to)
    for statement in _STATEMENTS:
        connection.exec_driver_sql(statement)
    return None


def _has_loaded() -> Registry:
    """Do as :meth:`connmgr.registry.Registry.load` does."""
    return _PLUGINS


endpoints()
_PLUGINS = Registry.load()
Registry.load = _has_loaded  # type: ignore[method-assign]
with tempfile.TemporaryDirectory(prefix="cm-") as name:
    _STATEMENTS = _migrations_result(Path(name))
    schema.upgrade = _upgrade_from_result
    Vault(open_database(f"sqlite:///{name}/vault.db"), VaultKey(bytes(32))).close()
