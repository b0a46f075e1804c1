"""Backup and restore. A backup of either database is a vault on SQLite in one file.

Beside the vault's tables it has two of its own: ``backup`` has its format, its origin and the list of files that are
left out; ``backup_file`` has the small files that connection types keep in the data directory, such as known_hosts. A
restored vault has neither. Backups before format 1 lack these tables, and can be restored all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from connmgr import __version__
from connmgr.errors import BackupFailed, StartupError
from connmgr.paths import CREATE
from connmgr.vault import schema
from connmgr.vault.backends import inspect_file, open_database, partial_files, sync_directory
from connmgr.vault.database import FILE_NAME, Database
from connmgr.vault.schema import category, commit_mark, connection, metadata, now

_BATCH_ROWS = 1000

FORMAT = 1
"""The format of the tables that describe a backup."""

MAX_FILE_BYTES = 16 << 20
"""Largest file of the data directory that a backup has; known_hosts has 100 bytes per host."""

_ABOUT, _FILES = "backup", "backup_file"
_COUNTED = {
    "connections": "connection",
    "categories": "category",
    "vault users": "principal WHERE name <> 'vault'",
    "tokens": "document WHERE kind = 'token'",
    "saved commands": "document WHERE kind = 'command'",
    "inventories": "document WHERE kind = 'inventory'",
    "signers": "document WHERE kind = 'signer'",
    "approvals": "document WHERE kind = 'approval'",
    "recovery keys": "document WHERE kind = 'recovery'",
    "jobs": "job",
}
"""The rows of the vault that a user knows, by the user's word for them."""

_VAULT_ITSELF = ("vault.db", "vault.db-*", "lock")
_LEFT_OUT = (
    ("the vault's key", "vault.key*", "no secret can be read without it: keep a copy of it elsewhere"),
    ("the API key", "api.key*", "`connmgr api-key` makes another one"),
    ("the audit log", "audit.*", "copy its files yourself; the backup has the anchor of its last entry"),
    ("recordings of terminals", "recordings", "copy the directory yourself"),
    ("blobs", "spool", "they end with their sessions"),
    ("the list of running shells", "shells.json", "they end with the daemon"),
)
"""What is not part of a backup: its name for people, the pattern of its files, and the reason."""


@dataclass(frozen=True)
class LeftOut:
    """Something of the data directory that a backup does not have."""

    name: str
    reason: str
    files: Mapping[str, int]
    """The size of each file, by its name."""

    @property
    def size(self) -> int:
        return sum(self.files.values())


@dataclass(frozen=True)
class Contents:
    """The contents of a backup, and the files that it leaves out."""

    format: int
    """0 for a backup without tables of its own."""
    created: str | None
    version: str | None
    """The version of connmgr that wrote it."""
    numbers: Mapping[str, int]
    """The number of connections, categories, users, tokens, and so on."""
    files: Mapping[str, bytes] = field(repr=False)
    """The content of the files beside the vault, by their names."""
    left_out: Sequence[LeftOut]


def backup(database: Database, file: Path, directory: Path | None = None) -> Contents:
    """Write a snapshot of ``database`` into the new ``file``, mode 0600; readers and writers go on.

    The backup also has the files that connection types keep in the data ``directory``. It lacks the vault's key,
    without which its secrets cannot be read, and the files that ``left_out`` of the result lists. ``file`` appears once
    it is complete and durable.
    :raises BackupFailed: ``file`` exists, or cannot be written.
    :raises VaultUnavailable: the database does not answer.
    """
    with _failing(f"The backup {file} cannot be written"), _appearing(file) as temporary:
        if not database.read(lambda tx: _copy_pages(tx, temporary)):
            # An empty file would be no new database.
            temporary.unlink()
            copy = open_database(f"sqlite:///{temporary}")
            copy.prepare()
            try:
                database.read(lambda tx: _copy_rows(tx, copy))
            finally:
                copy.close()
        _merge_log(temporary)
        files, left_out = _survey(directory, {file.name, temporary.name}) if directory else ({}, [])
        return _describe(temporary, files, left_out)


def restore(file: Path, directory: Path) -> tuple[Path, Contents]:
    """Make the backup ``file`` the vault of the empty ``directory``; return the vault's path and its contents.

    A missing directory is created, mode 0700. The caller puts the vault's key into it next.
    :raises BackupFailed: the directory is not empty, or the file is not a complete backup that this program can read;
        nothing was written.
    """
    vault = directory / FILE_NAME
    with _failing(f"The backup {file} cannot be restored"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if remains := partial_files(vault):
            raise BackupFailed(
                f"The directory {directory} is not empty: {remains[0]} is of another restore. Wait for its end; if it "
                "was killed, empty the directory and restore again."
            )
        if any(directory.iterdir()):
            raise BackupFailed(f"The directory {directory} is not empty: restore into a new one.")
        files: Mapping[str, bytes] = {}
        try:
            with _appearing(vault) as temporary:
                _copy_file(file, temporary)
                _examine(temporary)
                contents = _taken_out(temporary)
                _put_beside(directory, contents.files)
                files = contents.files
        except BaseException:
            _remove_beside(directory, files)
            raise
    return vault, contents


def restore_into(file: Path, database: Database, directory: Path | None = None) -> Contents:
    """Copy the backup ``file`` into ``database``, an empty one of either kind, and its files into ``directory``.

    :raises BackupFailed: the database is not empty, the directory has one of the files, or the file is not a whole
        backup that this program can read.
    :raises VaultUnavailable: the database does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="connmgr-") as scratch:
        # Reading a vault opens it for writing, so we read a copy.
        vault, contents = restore(file, Path(scratch))
        source = open_database(f"sqlite:///{vault}")
        database.prepare()
        try:
            with _failing(f"The backup {file} cannot be restored"):
                if directory is not None:
                    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                    _put_beside(directory, contents.files)
            try:
                source.read(lambda tx: _copy_rows(tx, database))
            except BaseException:
                if directory is not None:
                    _remove_beside(directory, contents.files)
                raise
        finally:
            source.close()
    return contents


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
    except UnicodeDecodeError as error:
        raise BackupFailed(f"{what}: it is damaged.") from error


@contextlib.contextmanager
def _appearing(file: Path) -> Iterator[Path]:
    """Yield the name of a new, empty file, which becomes ``file``, complete and durable, unless the body fails.

    :raises FileExistsError: ``file`` exists.
    """
    if file.exists():
        raise FileExistsError(None, "it exists already", str(file))
    temporary = file.with_name(f".{file.name}.{os.getpid()}.part")
    os.close(os.open(temporary, CREATE, 0o600))
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
        # All pages in one step, within the caller's read transaction: one snapshot, and with a write-ahead log nobody
        # waits for it (https://sqlite.org/backup.html).
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


def _merge_log(file: Path) -> None:
    # Leaving the mode WAL writes the log into the file and removes it, so that the backup is one file.
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("PRAGMA journal_mode = DELETE")


def _copy_file(file: Path, to: Path) -> None:
    journal = file.with_name(file.name + "-wal")
    if journal.exists() and journal.stat().st_size:
        raise BackupFailed(
            f"{file} is not a backup, but a vault that is in use or was not closed: make a backup of it first."
        )
    with file.open("rb") as source, to.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _examine(file: Path) -> None:
    """Check that ``file`` is a complete vault.

    :raises BackupFailed: it is empty or damaged.
    :raises StartupError: it is not a vault, or a newer one.
    """
    if inspect_file(file).revision is None:
        raise BackupFailed("The backup is empty.")
    with closing(sqlite3.connect(f"file:{quote(str(file))}?immutable=1", uri=True)) as raw:
        problem = raw.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok" or raw.execute("PRAGMA foreign_key_check").fetchone():
            raise BackupFailed("The backup is damaged.")


def _survey(directory: Path, own: Collection[str]) -> tuple[dict[str, bytes], list[LeftOut]]:
    """Return the files of the data directory for a backup, and the files to leave out; ``own`` are its own names."""
    files: dict[str, bytes] = {}
    left_out: dict[str, LeftOut] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if path.name in own or any(fnmatch(path.name, pattern) for pattern in _VAULT_ITSELF):
            continue
        sizes = _sizes(path)
        name, reason = next(
            ((name, reason) for name, pattern, reason in _LEFT_OUT if fnmatch(path.name, pattern)), (path.name, "")
        )
        if not reason:
            try:
                content = _content(path)
            except OSError as error:
                is_other = path.is_symlink() or not path.is_file()
                reason = "it is not a regular file" if is_other else f"it cannot be read: {error.strerror}"
            else:
                reason = _why_not(path.name, content)
        if not reason:
            files[path.name] = content
        else:
            before = left_out.get(name, LeftOut(name, reason, {}))
            left_out[name] = LeftOut(name, reason, {**before.files, **sizes})
    return files, list(left_out.values())


def _why_not(name: str, content: bytes) -> str:
    """Return why a file of the data directory is not part of a backup, ``""`` if it is."""
    if name.startswith(".") or "/" in name or "\0" in name:
        return "it is a hidden file"
    if len(content) > MAX_FILE_BYTES:
        return f"it has more than {MAX_FILE_BYTES >> 20} MiB"
    return "it is a database" if content.startswith(b"SQLite format 3") else ""


def _content(path: Path) -> bytes:
    """Return the beginning of a regular file, one byte more than a backup takes of one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "it is not a regular file")
        return file.read(MAX_FILE_BYTES + 1)


def _sizes(path: Path) -> dict[str, int]:
    """Return the sizes of the files at or below ``path``; those that are removed meanwhile are left out."""
    sizes = {}
    for file in [path] if not path.is_dir() or path.is_symlink() else sorted(path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                sizes[str(file.relative_to(path.parent))] = status.st_size
    return sizes


def _describe(file: Path, files: Mapping[str, bytes], left_out: Sequence[LeftOut]) -> Contents:
    """Write the tables of a backup itself into ``file``, and return its contents."""
    created = now().isoformat()
    description = {
        "format": FORMAT,
        "created": created,
        "version": __version__,
        "leftOut": [{"name": item.name, "reason": item.reason, "files": item.files} for item in left_out],
    }
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute(f"CREATE TABLE {_ABOUT} (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        raw.execute(f"CREATE TABLE {_FILES} (name TEXT PRIMARY KEY, content BLOB NOT NULL)")
        raw.executemany(
            f"INSERT INTO {_ABOUT} VALUES (?, ?)",  # noqa: S608 - a constant
            [(name, json.dumps(value)) for name, value in description.items()],
        )
        raw.executemany(f"INSERT INTO {_FILES} VALUES (?, ?)", files.items())  # noqa: S608 - a constant
        return Contents(FORMAT, created, __version__, _numbers(raw), files, left_out)


def _taken_out(file: Path) -> Contents:
    """Return the contents of a backup, and remove its own tables from ``file``.

    :raises BackupFailed: a newer connmgr wrote it, a file in it has a name that no connection type gives, or its own
        tables are damaged.
    """
    with _readable(), closing(sqlite3.connect(file)) as raw, raw:
        numbers, tables = _numbers(raw), _tables(raw)
        if "run" in tables:
            _stop_runs(raw)
        if "schedule" in tables:
            # What was due since the backup may have fired: schedules catch up with nothing before this time.
            at = schema.now().isoformat().encode()
            raw.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", [schema.RESTORED, at])
        if _ABOUT not in tables:
            return Contents(0, None, None, numbers, {}, [])
        description = {name: json.loads(value) for name, value in raw.execute(f"SELECT name, value FROM {_ABOUT}")}  # noqa: S608
        if description["format"] > FORMAT:
            raise BackupFailed(
                f"The backup has format {description['format']}, and this connmgr reads {FORMAT}: restore it with "
                f"connmgr {description.get('version', 'of a newer version')}."
            )
        files = dict(raw.execute(f"SELECT name, content FROM {_FILES}"))  # noqa: S608 - a constant
        for name, content in files.items():
            if not (isinstance(name, str) and isinstance(content, bytes)):
                raise TypeError("not a file")
            reserved = (*_VAULT_ITSELF, *(pattern for _, pattern, _ in _LEFT_OUT))
            if _why_not(name, content) or any(fnmatch(name, pattern) for pattern in reserved):
                raise BackupFailed(f"The backup has an unexpected file: {name!r}.")
        for table in (_ABOUT, _FILES):
            raw.execute(f"DROP TABLE {table}")
        left_out = [_left_out(item) for item in description["leftOut"]]
        created, version = str(description["created"]), str(description["version"])
        return Contents(int(description["format"]), created, version, numbers, files, left_out)


def _stop_runs(raw: sqlite3.Connection) -> None:
    """Stop the runs that were under way: since the backup they may have gone on, and nothing shall be begun twice."""
    under_way = "IN (SELECT id FROM run WHERE state IN ('pending', 'running', 'waiting', 'paused', 'stopping'))"
    why = "The vault was restored from a backup."
    raw.execute(f"UPDATE run_target SET state = 'stopped' WHERE state = 'waiting' AND run {under_way}")  # noqa: S608
    raw.execute(f"UPDATE run_target SET state = 'unknown' WHERE state = 'starting' AND run {under_way}")  # noqa: S608
    raw.execute(f"UPDATE run_batch SET state = 'done', owner = NULL WHERE run {under_way}")  # noqa: S608
    raw.execute(f"UPDATE run SET state = 'stopped', ended = submitted, reason = ? WHERE id {under_way}", [why])  # noqa: S608


def _left_out(item: Mapping[str, Any]) -> LeftOut:
    sizes = {str(name): int(size) for name, size in item["files"].items()}
    return LeftOut(str(item["name"]), str(item["reason"]), sizes)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raise BackupFailed in place of what damaged tables of a backup lead to."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BackupFailed("The backup is damaged: its description of itself cannot be read.") from error


def _tables(raw: sqlite3.Connection) -> set[str]:
    return {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _numbers(raw: sqlite3.Connection) -> dict[str, int]:
    tables = _tables(raw)
    return {
        what: raw.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]  # noqa: S608 - a constant
        for what, rows in _COUNTED.items()
        if rows.partition(" ")[0] in tables
    }


def _put_beside(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files`` into the data directory, mode 0600: all of them, or none if one exists."""
    written: dict[str, bytes] = {}
    try:
        for name, content in files.items():
            try:
                descriptor = os.open(directory / name, CREATE, 0o600)
            except FileExistsError:
                raise BackupFailed(f"{directory / name} exists already: move it away before you restore.") from None
            written[name] = content
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
    except BaseException:
        _remove_beside(directory, written)
        raise
    sync_directory(directory)


def _remove_beside(directory: Path, files: Mapping[str, bytes]) -> None:
    for name in files:
        (directory / name).unlink(missing_ok=True)
