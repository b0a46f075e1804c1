"""The version of the vault's schema, recognised at every start and upgraded if it is older."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from connmgr.errors import StartupError
from connmgr.vault.tables import meta

VERSION_TABLE = "connmgr_version"
"""Marks a database as a vault and holds the revision of its schema."""

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
"""Revisions under ``migrations/versions``, oldest first; a start without migration does not import Alembic."""

KEY_VERIFIER = "key_verifier"
"""The row of ``meta`` by which a vault recognises its key."""

_VERIFIER = sa.select(meta.c.value).where(meta.c.name == KEY_VERIFIER)


@dataclass(frozen=True)
class Found:
    """The content of a database: the schema's revision and the key's verifier, both None if it is empty."""

    revision: str | None = None
    verifier: bytes | None = None


def look(connection: sa.Connection) -> Found:
    """Return the content of the database, without writing.

    :raises StartupError: it has tables of another program, or is the vault of a newer connmgr.
    """
    tables = sa.inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise StartupError("The database is not a connmgr vault: give connmgr a database of its own.")
        return Found()
    revision = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608 - a constant
    if revision not in REVISIONS:
        known = f"schema {revision}, this one knows {REVISIONS[-1]}"
        raise StartupError(f"The vault was made by a newer connmgr ({known}): update connmgr.")
    return Found(revision, connection.scalar(_VERIFIER))


def upgrade(connection: sa.Connection, to: str = REVISIONS[-1]) -> str | None:
    """Upgrade the schema to the revision ``to`` within the connection's transaction; return the earlier revision.

    It is None for an empty database. The caller excludes other writers.
    :raises StartupError: as :func:`look`.
    """
    found = look(connection)
    if found.revision == to:
        return to
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(__file__).with_name("migrations")))
    steps = scripts._upgrade_revs
    environment = EnvironmentContext(Config(), scripts, fn=lambda revision, _: steps(to, revision))
    environment.configure(connection=connection, version_table=VERSION_TABLE, transactional_ddl=True)
    environment.run_migrations()
    return found.revision
