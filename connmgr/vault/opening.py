"""Opens the database at a URL with its backend."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from connmgr.errors import StartupError
from connmgr.vault.database import Backend, Database
from connmgr.vault.postgresql import PostgreSQL
from connmgr.vault.sqlite import SQLite


def open_database(url: str) -> Database:
    """Open the database at ``url`` (SQLAlchemy's form) as it is: nothing is created or changed.

    The URL is ``sqlite:///`` and a path, or begins with ``postgresql+psycopg://``.
    :raises StartupError: it cannot be reached, is damaged, not a vault, or newer than the program.
    """
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        # The reason would quote the URL with its password.
        raise StartupError(
            "The database URL cannot be read; it looks like postgresql+psycopg://user@host/name."
        ) from None
    backend: Backend
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise StartupError("A vault on SQLite needs a file: sqlite:////absolute/path/vault.db")
        backend = SQLite(Path(parsed.database))
    elif parsed.get_backend_name() == "postgresql":
        backend = PostgreSQL(parsed)
    else:
        raise StartupError(f"A vault cannot be kept in {parsed.get_backend_name()}: only in SQLite or PostgreSQL.")
    try:
        return Database(backend, backend.probe())
    except BaseException:
        backend.writer.dispose()
        raise
