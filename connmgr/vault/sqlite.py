"""SQLite as the vault's database: one file, readable by its owner alone, durable at every commit."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from connmgr.errors import IntegrityError, StartupError, VaultUnavailable
from connmgr.vault import schema
from connmgr.vault.database import Fault, Kind

BUSY_SECONDS = 5.0
"""Longest wait for another process that holds the file, such as a running backup."""

SCRUB_SECONDS = 0.2
"""Longest wait for readers; then a later change empties the log."""

POOL_SIZE, POOL_OVERFLOW, POOL_SECONDS = 8, 56, 10.0

_PRAGMAS = (
    f"busy_timeout = {int(BUSY_SECONDS * 1000)}",
    "journal_mode = WAL",
    # An acknowledged change must survive a power failure, not only a crash.
    "synchronous = FULL",
    "foreign_keys = ON",
    # Nothing of the vault goes into a temporary directory.
    "temp_store = MEMORY",
    # Deleted content does not stay in free pages.
    "secure_delete = ON",
    "trusted_schema = OFF",
    "cell_size_check = ON",
)

# By text, because Python 3.10 has no error codes of SQLite.
_FAULTS: dict[str, tuple[Kind, str]] = {
    "database is locked": (Kind.CONFLICT, "Another process holds the vault's database; try again."),
    "database or disk is full": (Kind.UNAVAILABLE, "The vault cannot be changed: its disk is full."),
    "disk I/O error": (Kind.UNAVAILABLE, "The vault's database cannot be read or written: the disk reports an error."),
    "unable to open database file": (Kind.UNAVAILABLE, "The vault's database file cannot be opened."),
    "attempt to write a readonly database": (Kind.UNAVAILABLE, "The vault cannot be changed: its file is read-only."),
}
_DAMAGE = ("malformed", "file is not a database", "Could not decode to UTF-8")


class SQLite:
    """A vault in the file ``path``."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = sa.create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=sa.QueuePool,
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_SECONDS,
            # Reuses the most recent connection, so that the fewest stay open.
            pool_use_lifo=True,
        )
        self.reader: sa.Engine = self.writer.execution_options(begin="BEGIN")
        sa.event.listen(self.writer, "begin", _begin)

    def probe(self) -> schema.Found:
        if not self.path.exists() or self.path.stat().st_size == 0:
            return schema.Found()
        try:
            return inspect(self.path)
        except (DBAPIError, sqlite3.Error) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise StartupError(f"The vault {self.path} is damaged ({reason}): restore it from a backup.") from error
        except OSError as error:
            raise StartupError(f"The vault {self.path} cannot be read: {error.strerror}.") from error

    def prepare(self) -> None:
        # SQLite gives its files beside this one the same mode.
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StartupError(f"The vault {self.path} cannot be written to: {error.strerror}.") from error
        sync_directory(self.path.parent)

    def begin(self, connection: sa.Connection) -> None:
        connection.begin()

    def mark(self, connection: sa.Connection) -> None:
        pass

    def outcome(self, mark: str) -> bool:
        raise NotImplementedError("a commit to a file is answered, or did not happen")

    def scrub(self) -> bool:
        # secure_delete zeroes freed pages, but the write-ahead log still holds older entries.
        connection = self.writer.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {int(SCRUB_SECONDS * 1000)}")
            try:
                return not cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        except sqlite3.Error:
            return False
        finally:
            connection.close()

    def diagnose(self, error: DBAPIError) -> Fault | None:
        text = str(error.orig)
        if any(sign in text for sign in _DAMAGE):
            return Fault(Kind.UNAVAILABLE, IntegrityError("The vault's database is damaged: restore it from a backup."))
        for sign, (kind, message) in _FAULTS.items():
            if text.startswith(sign):
                return Fault(kind, VaultUnavailable(message))
        return None

    def _connect(self) -> sqlite3.Connection:
        # Transactions are begun explicitly: Python's module begins none before a change of the schema.
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def inspect(path: Path) -> schema.Found:
    """Return the content of the vault in the file ``path``, without writing to it.

    :raises sqlite3.Error, DBAPIError: it is damaged.
    :raises StartupError: it is no vault, or a newer one.
    """
    with closing(_connect_to_look(path)) as raw:
        problem = raw.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem.splitlines()[-1])
        engine = sa.create_engine("sqlite://", creator=lambda: raw, poolclass=sa.StaticPool)
        with engine.connect() as connection:
            return schema.look(connection)


def _connect_to_look(path: Path) -> sqlite3.Connection:
    with path.open("rb"):
        pass
    if _holds(path, "-journal"):
        # A process was killed while it set the journal mode: only a writer can recover the file.
        mode = "mode=rw"
    elif _holds(path, "-wal"):
        mode = "mode=ro"
    else:
        # Otherwise SQLite would create files for sharing with other processes.
        mode = "immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, isolation_level=None)
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    return connection


def _holds(path: Path, suffix: str) -> bool:
    beside = path.with_name(path.name + suffix)
    return beside.exists() and beside.stat().st_size > 0


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN IMMEDIATE"))


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
