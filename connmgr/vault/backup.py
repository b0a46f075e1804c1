"""Backup and restore. A backup of either database is a vault on SQLite in one file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from connmgr.errors import BackupFailed, StartupError
from connmgr.vault import schema
from connmgr.vault.database import FILE_NAME, Database
from connmgr.vault.opening import open_database
from connmgr.vault.sqlite import inspect, sync_directory
from connmgr.vault.tables import category, commit_mark, connection, metadata

_BATCH_ROWS = 1000


def backup(database: Database, file: Path) -> None:
    """Write a snapshot of ``database`` into the new ``file``, mode 0600; readers and writers go on.

    It lacks only the vault's key, without which its secrets cannot be read. ``file`` appears once it is complete and
    durable.
    :raises BackupFailed: ``file`` exists, or cannot be written.
    :raises VaultUnavailable: the database does not answer.
    """
    with _failing(f"The backup {file} cannot be written"), _appearing(file) as temporary:
        if not database.read(lambda tx: _copy_pages(tx, temporary)):
            copy = open_database(f"sqlite:///{temporary}")
            copy.prepare()
            try:
                database.read(lambda tx: _copy_rows(tx, copy))
            finally:
                copy.close()
        _settle(temporary)


def restore(file: Path, directory: Path) -> Path:
    """Make the backup ``file`` the vault of the empty ``directory``, and return the vault's path.

    A missing directory is created, mode 0700. The caller puts the vault's key into it next.
    :raises BackupFailed: the directory is not empty, or the file is not a complete backup that this program can read;
        nothing was written.
    """
    vault = directory / FILE_NAME
    with _failing(f"The backup {file} cannot be restored"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise BackupFailed(f"The directory {directory} is not empty: restore into a new one.")
        with _appearing(vault) as temporary:
            _copy_file(file, temporary)
            _examine(temporary)
    return vault


def restore_into(file: Path, database: Database) -> None:
    """Copy the backup ``file`` into ``database``, an empty one of either kind.

    :raises BackupFailed: the database is not empty, or the file is not a whole backup that this program can read.
    :raises VaultUnavailable: the database does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="connmgr-") as directory:
        # Reading a vault opens it for writing, so we read a copy.
        source = open_database(f"sqlite:///{restore(file, Path(directory))}")
        database.prepare()
        try:
            source.read(lambda tx: _copy_rows(tx, database))
        finally:
            source.close()


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackupFailed(f"{what}: {error.strerror}.") from error
    except (sqlite3.Error, DBAPIError) as error:
        raise BackupFailed(f"{what}: {error.orig if isinstance(error, DBAPIError) else error}.") from error
    except StartupError as error:
        raise BackupFailed(f"{what}: {error.message}") from error


@contextlib.contextmanager
def _appearing(file: Path) -> Iterator[Path]:
    """Yield the name of a new, empty file, which becomes ``file``, complete and durable, unless the body fails.

    :raises FileExistsError: ``file`` exists.
    """
    if file.exists():
        raise FileExistsError(None, "it exists already", str(file))
    temporary = file.with_name(f".{file.name}.{os.getpid()}.part")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        yield temporary
        descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # Unlike a rename, a link never replaces a file that appeared meanwhile.
        os.link(temporary, file)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)
    sync_directory(file.parent)


def _copy_pages(tx: sa.Connection, to: Path) -> bool:
    """Copy the state of a SQLite vault within ``tx``; return False for another database."""
    if tx.dialect.name != "sqlite":
        return False
    source: Any = tx.connection.dbapi_connection
    with closing(sqlite3.connect(to)) as target:
        source.backup(target)
    return True


def _copy_rows(source: sa.Connection, target: Database) -> None:
    """Copy the state of a vault within ``source`` into an empty database of either kind.

    The copy keeps an older schema: the upgrade needs the vault's key.
    """
    revision = schema.look(source).revision or schema.REVISIONS[-1]
    inspector = sa.inspect(source)

    def work(tx: sa.Connection) -> None:
        if schema.upgrade(tx, revision) is not None:
            raise BackupFailed("The database is not empty: restore into a new one.")
        for table in metadata.sorted_tables:
            if table is commit_mark or not inspector.has_table(table.name):
                continue
            selected = sa.select(*(table.c[column["name"]] for column in inspector.get_columns(table.name)))
            if table in (category, connection):
                # Children refer to their parents, so parents come first.
                selected = selected.order_by(table.c.depth)
            result = source.execute(selected, execution_options={"yield_per": _BATCH_ROWS})
            for rows in result.mappings().partitions():
                tx.execute(table.insert(), [dict(row) for row in rows])

    target.write(work)


def _settle(file: Path) -> None:
    """Merge the vault's log into its file."""
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("PRAGMA journal_mode = DELETE")


def _copy_file(file: Path, to: Path) -> None:
    journal = file.with_name(file.name + "-wal")
    if journal.exists() and journal.stat().st_size:
        raise BackupFailed(f"{file} is a vault in use, or one that was not closed: make a backup of it.")
    with file.open("rb") as source, to.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _examine(file: Path) -> None:
    """Check that ``file`` is a complete vault.

    :raises BackupFailed: it is empty or damaged.
    :raises StartupError: it is no vault, or a newer one.
    """
    if inspect(file).revision is None:
        raise BackupFailed("The backup is empty.")
    with closing(sqlite3.connect(f"file:{quote(str(file))}?immutable=1", uri=True)) as raw:
        problem = raw.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok" or raw.execute("PRAGMA foreign_key_check").fetchone():
            raise BackupFailed("The backup is damaged.")
