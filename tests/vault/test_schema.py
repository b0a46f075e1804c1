"""The migrations create exactly the tables of the program."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from connmgr.vault import Vault, schema
from connmgr.vault.schema import metadata
from tests.daemon import Daemon

FOR_QUERIES = {"ix_connection_query", "ix_connection_depth", "ix_connection_long"}
"""Indices that differ between the databases."""


def test_the_known_revisions_are_those_of_the_migrations() -> None:
    scripts = ScriptDirectory(str(Path(schema.__file__).with_name("migrations")))
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == schema.REVISIONS
    assert scripts.get_heads() == [schema.REVISIONS[-1]]


def test_the_migrations_make_the_tables(vault: Vault) -> None:
    def compare(tx: sa.Connection) -> list[object]:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        return compare_metadata(MigrationContext.configure(tx, opts=options), metadata)

    differences = [
        change
        for change in vault.database.read(compare)
        if not (isinstance(change, tuple) and change[0] == "remove_index" and change[1].name in FOR_QUERIES)
    ]
    assert differences == []


def test_forked_daemons_write_what_the_migrations_write(own_daemon: Daemon, new_file: Path) -> None:
    """Their migrations have run before they were forked (tests/prepared.py)."""

    def made(file: Path) -> tuple[list[object], list[object]]:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            schema_of = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
            return schema_of.fetchall(), database.execute(f"SELECT * FROM {schema.VERSION_TABLE}").fetchall()

    assert made(own_daemon.data_dir / "vault.db") == made(new_file)
