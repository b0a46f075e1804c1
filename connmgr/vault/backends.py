"""The two databases that can hold a vault: a SQLite file, with its lock, for one daemon; PostgreSQL for several.

:func:`open_database` chooses by the URL. The protocol :class:`connmgr.vault.database.Backend` has everything in which
the two differ; a statement that both understand is written once, elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Generator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from connmgr.computing import give_way, gives_way
from connmgr.durations import boot_time
from connmgr.errors import IntegrityError, StartupError, VaultUnavailable
from connmgr.processes import start_of
from connmgr.vault import schema
from connmgr.vault.database import Backend, Database, Fault, Kind, Listening

POOL_SIZE, SQLITE_POOL_OVERFLOW, POSTGRESQL_POOL_OVERFLOW, POOL_SECONDS = 8, 56, 24, 10.0
"""Connections that stay open, further connections on either database, and the longest wait for a connection."""


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
            "The database URL cannot be read: write it as postgresql+psycopg://user@host/name."
        ) from None
    backend: Backend
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise StartupError("A vault on SQLite needs a file: sqlite:////absolute/path/vault.db")
        backend = SQLite(Path(parsed.database))
    elif parsed.get_backend_name() == "postgresql":
        backend = PostgreSQL(parsed)
    else:
        raise StartupError(f"A vault can be in SQLite or PostgreSQL, but not in {parsed.get_backend_name()}.")
    try:
        return Database(backend, backend.probe())
    except BaseException:
        backend.writer.dispose()
        raise


BUSY_SECONDS = 5.0
"""Longest wait for another process that holds the file, such as a running backup."""

SCRUB_SECONDS = 0.2
"""Longest wait for readers; then a later change empties the log."""

_PRAGMAS = (
    # First, because the next one may have to wait for another process itself.
    f"busy_timeout = {int(BUSY_SECONDS * 1000)}",
    # Readers see the last commit while a writer writes, and neither waits for the other (https://sqlite.org/wal.html).
    # With a rollback journal a listing of 100,000 connections would hold up every change.
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

# By text, because Python 3.10 has no error codes of SQLite. `{vault}` is its path, which tokens are not told.
_SQLITE_FAULTS: dict[str, tuple[Kind, str]] = {
    "database is locked": (Kind.CONFLICT, "Another process holds the vault's database{vault}; try again."),
    "database or disk is full": (Kind.UNAVAILABLE, "The vault{vault} cannot be changed: its disk is full."),
    "disk I/O error": (
        Kind.UNAVAILABLE,
        "The vault's database{vault} cannot be read or written: the disk reports an error.",
    ),
    "unable to open database file": (Kind.UNAVAILABLE, "The vault's database file{vault} cannot be opened."),
    "attempt to write a readonly database": (
        Kind.UNAVAILABLE,
        "The vault{vault} cannot be changed: its file is read-only.",
    ),
}
_LEAST_BYTES = 512
"""The size of the smallest page of SQLite."""

_DAMAGE = ("malformed", "file is not a database", "Could not decode to UTF-8")


def partial_files(file: Path) -> list[Path]:
    """Return the files that become ``file`` when whoever writes them has ended; of those who were killed, they stay."""
    return sorted(file.parent.glob(f".{file.name}.*.part"))


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
            max_overflow=SQLITE_POOL_OVERFLOW,
            pool_timeout=POOL_SECONDS,
            # Reuses the most recent connection, so that the fewest stay open.
            pool_use_lifo=True,
        )
        # A plain BEGIN takes its snapshot with the first statement. If somebody else writes after that, a write in the
        # same transaction fails at once with SQLITE_BUSY, whatever busy_timeout says. So transactions that write begin
        # with BEGIN IMMEDIATE (`_begin`), which waits for the write lock before anything is read.
        self.reader: sa.Engine = self.writer.execution_options(begin="BEGIN")
        sa.event.listen(self.writer, "begin", _begin)

    def now(self) -> datetime:
        return schema.now()

    def probe(self) -> schema.StoredSchema:
        if not self.path.exists():
            if remains := partial_files(self.path):
                # A daemon would begin an empty vault where somebody expects the restored one.
                raise StartupError(
                    f"There is no vault at {self.path}: a restore has left {remains[0]}. If it still runs, wait for "
                    f"its end. If it was killed, empty {self.path.parent} and restore the backup again."
                )
            if _holds(self.path, "-wal"):
                # With its next change SQLite would remove what belongs to another file.
                raise StartupError(
                    f"The vault {self.path} is missing, and its last changes are in {self.path}-wal: put the file back "
                    "beside them, or restore a backup. To begin a new vault, remove that file, too."
                )
            return schema.StoredSchema()
        try:
            if self.path.stat().st_size < _LEAST_BYTES:
                # SQLite takes it for a new database, and removes the changes beside it.
                raise StartupError(
                    f"The vault {self.path} is empty, and connmgr never leaves it so: restore it from a backup. To "
                    "begin a new vault, remove the file."
                )
            return inspect_file(self.path)
        except (DBAPIError, sqlite3.Error) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise StartupError(f"The vault {self.path} is damaged ({reason}): restore it from a backup.") from error
        except OSError as error:
            raise StartupError(f"The vault {self.path} cannot be read: {error.strerror}.") from error

    def prepare(self) -> None:
        try:
            if not self.path.exists():
                self._create()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StartupError(f"The vault {self.path} cannot be written to: {error.strerror}.") from error
        except sqlite3.Error as error:
            raise StartupError(f"The vault {self.path} cannot be created: {error}.") from error
        sync_directory(self.path.parent)

    def _create(self) -> None:
        # It gets its name with its first page, so that an empty file is never a vault whose creation was interrupted.
        # With mode 0600 from the beginning, because SQLite would apply the umask; its -wal and -shm files get the same.
        new = self.path.with_name(f".{self.path.name}.new")
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA journal_mode = WAL")
        new.rename(self.path)

    def begin(self, connection: sa.Connection) -> None:
        connection.begin()

    def mark(self, connection: sa.Connection) -> None:
        pass

    def outcome(self, mark: str) -> bool:
        raise NotImplementedError("a commit to a file is answered, or did not happen")

    def scrub(self) -> bool:
        # secure_delete zeroes freed pages, but the write-ahead log still holds older entries. TRUNCATE copies them into
        # the file and empties the log; it needs a moment without readers of older snapshots. A reader that stays longer
        # than SCRUB_SECONDS makes it return "busy", which is not an error: Database.write tries again after the next
        # change.
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

    def announce(self, connection: sa.Connection, topic: str) -> None:
        pass

    def listen(self) -> Listening:
        raise NotImplementedError("One process holds a vault on SQLite.")

    def diagnose(self, error: DBAPIError) -> Fault | None:
        text = str(error.orig)
        if any(sign in text for sign in _DAMAGE):
            return Fault(Kind.UNAVAILABLE, IntegrityError("The vault's database is damaged: restore it from a backup."))
        for sign, (kind, message) in _SQLITE_FAULTS.items():
            if text.startswith(sign):
                return Fault(kind, _unavailable(message, str(self.path)))
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


_PIECE_STEPS = 10000
"""Instructions of SQLite's virtual machine after which a token's search gives way: some 0.1 ms."""


def _begin(connection: sa.Connection) -> None:
    statement = connection.get_execution_options().get("begin", "BEGIN IMMEDIATE")
    # Not while it writes, for which the owner may wait; and not for the owner, since each call takes the interpreter.
    handler = give_way if statement == "BEGIN" and gives_way() else None
    if handler is not None:
        give_way()
    connection.connection.dbapi_connection.set_progress_handler(handler, _PIECE_STEPS)  # type: ignore[union-attr]
    connection.exec_driver_sql(statement)


def inspect_file(path: Path) -> schema.StoredSchema:
    """Return the content of the vault in the file ``path``, without writing to it.

    :raises sqlite3.Error, DBAPIError: it is damaged.
    :raises StartupError: it is not a vault, or a newer one.
    """
    with closing(_connect_to_look(path)) as raw:
        # SQLite quotes damaged names in what it says about them.
        raw.text_factory = lambda text: str(text, errors="replace")
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


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


HOLDER_BYTES = 400
LEFT_SECONDS = 5.0
"""Longest wait for a lock whose holder runs no more: a program that it was about to start when it was killed has the
lock too, until it begins."""

LOCK_PAUSE_SECONDS = 0.02


class VaultLock:
    """Holds the lock file ``path`` until :meth:`release`; the file stays, and names its last holder and its address.

    A vault on PostgreSQL needs no lock, because daemons share it.
    :raises StartupError: another process holds it, or the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise StartupError(f"The lock file {path} cannot be opened: {error.strerror}.") from error
        try:
            self._take()
        except OSError as error:
            os.close(self._descriptor)
            raise StartupError(f"The lock file {path} cannot be locked: {error.strerror}.") from error
        except BaseException:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _take(self) -> None:
        """Take the lock; wait for it where its holder has ended, or raise :class:`StartupError`."""
        deadline = time.monotonic() + LEFT_SECONDS
        while not self._is_taken():
            holder = os.pread(self._descriptor, HOLDER_BYTES, 0).decode("ascii", "replace").splitlines()
            pid, url = [*holder, "", ""][:2]
            if not (pid.isdecimal() and _has_ended(int(pid)) and time.monotonic() < deadline):
                where = f" and listens on {url}" if url else ""
                raise StartupError(f"Another connmgr daemon (pid {pid or 'unknown'}) uses this vault{where}.")
            time.sleep(LOCK_PAUSE_SECONDS)

    def _is_taken(self) -> bool:
        """Take the lock, unless another process holds it; return whether it was taken."""
        try:
            # flock(2) and not a lock of POSIX, which ends when any descriptor of the file is closed in the process. The
            # kernel releases it with the process, so a killed daemon leaves nothing to clean up.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def tell(self, url: str) -> None:
        """Write the holder's address into the file, for programs that find the lock taken."""
        os.pwrite(self._descriptor, f"{os.getpid()}\n{url}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; calling it again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> VaultLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _has_ended(pid: int) -> bool:
    try:
        start_of(pid)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        # Another user's.
        return False
    return False


MIN_MAJOR_VERSION = 13
CONNECT_SECONDS = 5
STATEMENT_SECONDS, LOCK_SECONDS, IDLE_SECONDS = 10, 5, 30
"""Limits that the server applies to a statement, a wait for a lock, and an idle transaction."""

ANSWER_SECONDS = 15.0
"""A server that sends nothing for this long, not even a timeout of a statement, counts as lost."""

MARK_SECONDS = 3600
"""Age in seconds at which marks are deleted; no client looks for so old a mark."""

RECYCLE_SECONDS = 1800

UNCHECKED_SECONDS = 1.0
"""A connection that was idle for less is used without a question whether it lives."""

CLOCK_SECONDS = 10.0
"""Time for which the server's clock is taken to go on as this machine's does."""

_SETTINGS = (
    f"SET statement_timeout = '{STATEMENT_SECONDS}s'; SET lock_timeout = '{LOCK_SECONDS}s';"
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
)
_TIME = "SELECT clock_timestamp()"
# Every writing transaction holds it: "connmgr" in ASCII. Writes are rare, and one writer at a time keeps two daemons
# from adding equal connections, which no constraint could prevent.
_LOCK = int.from_bytes(b"connmgr", "big")
_BEGIN = sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})")
_MARK = sa.text(
    f"WITH old AS (DELETE FROM commit_mark WHERE made < now() - interval '{MARK_SECONDS} s')"  # noqa: S608 - a constant
    " INSERT INTO commit_mark (mark) VALUES (:mark)"
)
_CHANNEL = "connmgr"
_ANNOUNCE = sa.text(f"SELECT pg_notify('{_CHANNEL}', :topic)")
_OUTCOME = sa.text("SELECT EXISTS (SELECT FROM commit_mark WHERE mark = :mark)")

_LOST = (Kind.LOST, "The vault's database{vault} does not answer{why}; try again.")
_CONFLICT = (Kind.CONFLICT, "Other daemons change the vault at the same time; try again.")
# SQLSTATE, or the class that it begins with: https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRESQL_FAULTS: dict[str, tuple[Kind, str]] = {
    "08": _LOST,
    "57P": _LOST,
    "25P03": _LOST,
    "40001": _CONFLICT,
    "40P01": _CONFLICT,
    "55P03": (Kind.CONFLICT, "Another daemon holds the vault; try again."),
    "57014": (Kind.UNAVAILABLE, "The vault's database server{vault} took too long; try again."),
    "53100": (Kind.UNAVAILABLE, "The vault{vault} cannot be changed: its server's disk is full."),
    "53": (Kind.UNAVAILABLE, "The vault's database server{vault} has no room for more{why}; try again."),
    "25006": (Kind.UNAVAILABLE, "The vault{vault} cannot be changed: its database is read-only."),
    "42501": (Kind.UNAVAILABLE, "The database user lacks a privilege that the vault{vault} needs{why}."),
    "58": (Kind.UNAVAILABLE, "The vault's database server{vault} reports a fault of its system{why}."),
    "28": (Kind.UNAVAILABLE, "The vault's database server{vault} refuses its user{why}."),
    "3F": (Kind.UNAVAILABLE, "The vault's database{vault} has no schema that its user may use."),
    "42P01": (Kind.UNAVAILABLE, "The vault's tables are not in the schema that its user uses{vault}{why}."),
    "3D000": (Kind.UNAVAILABLE, "The vault's database{vault} does not exist on its server."),
}


def _unavailable(message: str, vault: str, why: str = "") -> VaultUnavailable:
    """Return a new error about the ``vault``, which tells a token neither where that is nor ``why``.

    Never one that was raised before: it would keep the frames of all who have raised it.
    """
    error = VaultUnavailable(message.format(vault=f" {vault}", why=f" ({why})" if why else ""))
    error.for_tokens = message.format(vault="", why="")
    return error


def _reason(error: BaseException | None) -> str:
    """Return the reason in what psycopg says: its first line, without the address, which libpq puts before it."""
    lines = str(error).strip().splitlines()
    return lines[0].rpartition(" failed: ")[2].strip().removeprefix("FATAL:").strip() if lines else ""


class PostgreSQL:
    """A vault in the database that ``url`` names."""

    is_shared = True

    def __init__(self, url: sa.URL) -> None:
        try:
            import psycopg
        except ImportError:
            raise StartupError(
                "PostgreSQL needs its driver: install connmgr[postgres], in a clone by `pip install '.[postgres]'`."
            ) from None

        class PostgresConnection(psycopg.Connection[Any]):
            """A connection whose waits end even if the server hangs."""

            def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
                try:
                    return super().wait(_bounded(gen), *args, **kwargs)
                except TimeoutError as error:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("no answer") from error

        self._shown = url.set(query={}).render_as_string(hide_password=True)
        self._has_marks = False
        self._clock = schema.now(), boot_time()
        """What the server's clock said last, and the :func:`boot_time` at which it was asked."""
        self._own = set[int]()
        """The server's processes that serve this daemon: what they announce is known here."""

        self.writer = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_recycle=RECYCLE_SECONDS,
            pool_size=POOL_SIZE,
            max_overflow=POSTGRESQL_POOL_OVERFLOW,
            pool_timeout=POOL_SECONDS,
            pool_use_lifo=True,
            connect_args={
                "connect_timeout": CONNECT_SECONDS,
                "application_name": "connmgr",
                # Detects a server that vanished from the network.
                "keepalives_idle": 30,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": 20_000,
            },
        )
        sa.event.listen(
            self.writer, "do_connect", lambda _, __, args, options: PostgresConnection.connect(*args, **options)
        )
        # Settings apply only after authentication; all travel in one round trip.
        sa.event.listen(self.writer, "connect", self._set_up)
        sa.event.listen(self.writer, "close", lambda _, record: self._own.discard(record.info.get("process")))
        sa.event.listen(self.writer, "checkin", lambda _, record: record.info.update(since=time.monotonic()))
        sa.event.listen(self.writer, "checkout", self._check)
        self.reader: sa.Engine = self.writer.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    def now(self) -> datetime:
        at, asked = self._clock
        return at + timedelta(seconds=boot_time() - asked)

    def probe(self) -> schema.StoredSchema:
        try:
            with self.reader.begin() as connection:
                version = connection.scalar(sa.text("SELECT current_setting('server_version_num')::integer / 10000"))
                if version is None or version < MIN_MAJOR_VERSION:
                    raise StartupError(
                        f"PostgreSQL at {self._shown} is too old: at least {MIN_MAJOR_VERSION} is needed."
                    )
                if connection.scalar(sa.text("SHOW server_encoding")) != "UTF8":
                    raise StartupError(f"The vault's database {self._shown} must have the encoding UTF8.")
                return schema.look(connection)
        except DBAPIError as error:
            reason = " ".join(str(error.orig).split())
            raise StartupError(f"The vault's database {self._shown} cannot be used: {reason}") from error

    def prepare(self) -> None:
        pass

    def begin(self, connection: sa.Connection) -> None:
        # The server releases the lock with the transaction, also that of a daemon that was killed or cut off. Waiting
        # for it ends after LOCK_SECONDS with 55P03, a conflict, which is tried again.
        connection.execute(_BEGIN)

    def mark(self, connection: sa.Connection) -> str | None:
        # A mark of our own, because after a crash the server may reuse the number of a transaction.
        # Looked up until it is there: a backup of an older schema may be restored, into an empty database.
        self._has_marks = self._has_marks or sa.inspect(connection).has_table("commit_mark")
        if not self._has_marks:
            return None
        mark = secrets.token_hex(16)
        connection.execute(_MARK, {"mark": mark})
        return mark

    def outcome(self, mark: str) -> bool:
        with self.writer.connect() as connection:
            # The transaction in question holds this lock until it ends; the next statement sees its result.
            connection.execute(_BEGIN)
            return bool(connection.scalar(_OUTCOME, {"mark": mark}))

    def scrub(self) -> bool:
        # The server clears tables and log itself, by its administrator's settings.
        return True

    def _set_up(self, connection: Any, record: Any) -> None:
        self._ask_time(connection, _SETTINGS)
        record.info.update(process=connection.info.backend_pid, since=time.monotonic())
        self._own.add(record.info["process"])

    def _check(self, connection: Any, record: Any, _: object) -> None:
        """Ask a connection that was idle for long what time it is; the pool opens another one if it does not answer.

        One that was used just now is not asked: that would be one round trip in four of a busy daemon, and a
        transaction on a lost connection is repeated anyway.
        """
        is_known = boot_time() - self._clock[1] < CLOCK_SECONDS
        if is_known and time.monotonic() - record.info.get("since", 0.0) < UNCHECKED_SECONDS:
            return
        try:
            self._ask_time(connection)
        except self.writer.dialect.dbapi.Error as error:  # type: ignore[union-attr]
            raise sa.exc.InvalidatePoolError from error

    def _ask_time(self, connection: Any, before: str = "") -> None:
        """Ask for the server's time, in one round trip with the statements ``before``."""
        # Taken before the answer, so that this clock is never behind the server's: no right lasts longer by the wait.
        asked = boot_time()
        connection.autocommit = True
        try:
            cursor = connection.execute(f"{before}; {_TIME}" if before else _TIME)
            while cursor.nextset():
                pass
            [at] = cursor.fetchone()
        finally:
            if not connection.closed:
                connection.autocommit = False
        self._clock = at.astimezone(timezone.utc), asked

    def announce(self, connection: sa.Connection, topic: str) -> None:
        connection.execute(_ANNOUNCE, {"topic": topic})

    def listen(self) -> PostgresListening:
        try:
            pooled = self.writer.raw_connection()
        except self.writer.dialect.dbapi.Error as error:  # type: ignore[union-attr]
            # SQLAlchemy wraps the errors of statements, and not those of a bare connection.
            raise self._lost(error) from error
        connection = pooled.driver_connection
        # A link of its own: the pool neither hands it to others nor counts it.
        pooled.detach()
        return PostgresListening(connection, self._own, self._lost)

    def diagnose(self, error: DBAPIError) -> Fault | None:
        state = getattr(error.orig, "sqlstate", None)
        if state is None:
            lost = error.connection_invalidated or isinstance(error, sa.exc.OperationalError)
            return Fault(Kind.LOST, self._lost(error.orig)) if lost else None
        matching = [code for code in _POSTGRESQL_FAULTS if state.startswith(code)]
        if not matching:
            return None
        kind, message = _POSTGRESQL_FAULTS[max(matching, key=len)]
        return Fault(kind, _unavailable(message, self._shown, _reason(error.orig)))

    def _lost(self, error: BaseException | None) -> VaultUnavailable:
        return _unavailable(_LOST[1], self._shown, _reason(error))


class PostgresListening:
    """A link on which announcements are heard; see :class:`connmgr.vault.database.Listening`."""

    def __init__(
        self, connection: Any, own: Collection[int], lost: Callable[[BaseException], VaultUnavailable]
    ) -> None:
        self._connection, self._own, self._lost, self._topics = connection, own, lost, set[str]()
        self._connection.add_notify_handler(lambda notice: self._note(notice.pid, notice.payload))
        try:
            self._connection.autocommit = True
            self._ask(f"LISTEN {_CHANNEL}")
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return int(self._connection.fileno())

    def take(self) -> set[str]:
        import psycopg

        try:
            self._connection.pgconn.consume_input()
            while (notice := self._connection.pgconn.notifies()) is not None:
                self._note(notice.be_pid, notice.extra.decode())
        except psycopg.Error as error:
            raise self._lost(error) from error
        topics, self._topics = self._topics, set()
        return topics

    def _note(self, process: int, topic: str) -> None:
        # Behind a pooler the numbers of processes are not those of the server: then the daemon hears itself, too.
        if process not in self._own:
            self._topics.add(topic)

    def check(self) -> None:
        self._ask("SELECT 1")

    def close(self) -> None:
        self._connection.close()

    def _ask(self, statement: str) -> None:
        import psycopg

        try:
            self._connection.execute(statement)
        except psycopg.Error as error:
            raise self._lost(error) from error


def _bounded(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Relay psycopg's wait and its protocol for at most :data:`ANSWER_SECONDS`.

    :raises TimeoutError: they were not done by then.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        step = next(steps)
        while True:
            # Falsy several times a second while nothing comes.
            ready = yield step
            if not ready and time.monotonic() > deadline:
                raise TimeoutError
            step = steps.send(ready)
    except StopIteration as end:
        return end.value
