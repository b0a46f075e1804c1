"""The migrations create exactly the tables of the program."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from connmgr.vault import Vault, schema
from connmgr.vault.schema import metadata

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
