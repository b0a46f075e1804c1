"""What every daemon computes at its start, and computes alike: daemons are forked after it (tests/spawner.py).

The schema of a new vault in SQLite is such a result: its migrations run once, here, and a daemon forked from here
writes what they wrote. They run themselves in tests/vault, and in each daemon that is started in another way. So do
the plugins: they are loaded here, and a daemon forked from here has them. The statements of its first requests are
compiled here, too.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

import tests.compiled  # noqa: F401 - before a database is opened
from connmgr.api.app import endpoints
from connmgr.registry import Registry
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import Vault, open_database, schema
from connmgr.vault.jobs import JobFilter

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


def _use(vault: Vault) -> None:
    """Do with an empty vault what most daemons do at their start and in their first requests."""
    made, _ = vault.connections.add("one", "ssh", {}, fingerprint=b"", same=bool)
    vault.connections.query()
    vault.connections.listed()
    vault.connections.infos([made])
    vault.connections.get(made)
    vault.connections.touch(made)
    vault.categories.infos(vault.categories.query())
    vault.jobs.find(JobFilter())
    vault.tokens.all()
    vault.runs.are_under_way()
    vault.runs.next_expiry()
    vault.schedules.earliest()


endpoints()
_PLUGINS = Registry.load()
Registry.load = _has_loaded  # type: ignore[method-assign]
with tempfile.TemporaryDirectory(prefix="cm-") as name:
    _STATEMENTS = _migrations_result(Path(name))
    schema.upgrade = _upgrade_from_result
    with closing(Vault(open_database(f"sqlite:///{name}/vault.db"), VaultKey(bytes(32)))) as vault:
        _use(vault)
