"""PostgreSQL as the vault's database, shared by the daemons of a team."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from connmgr.errors import StartupError, VaultUnavailable
from connmgr.vault import schema
from connmgr.vault.database import Fault, Kind

MIN_MAJOR_VERSION = 13
CONNECT_SECONDS = 5
STATEMENT_SECONDS, LOCK_SECONDS, IDLE_SECONDS = 10, 5, 30
"""Limits that the server applies to a statement, a wait for a lock, and an idle transaction."""

ANSWER_SECONDS = 15.0
"""A server that sends nothing for this long, not even a timeout of a statement, counts as lost."""

MARK_SECONDS = 3600
"""Age in seconds at which marks are deleted, because no client looks for them any more."""

RECYCLE_SECONDS = 1800
POOL_SIZE, POOL_OVERFLOW, POOL_SECONDS = 8, 24, 10.0

_SETTINGS = (
    f"SET statement_timeout = '{STATEMENT_SECONDS}s'; SET lock_timeout = '{LOCK_SECONDS}s';"
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
)
# Every writing transaction holds it: "connmgr" in ASCII. Writes are rare, and one writer at a time keeps two daemons
# from adding equal connections, which no constraint could prevent.
_LOCK = int.from_bytes(b"connmgr", "big")
_BEGIN = sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})")
_MARK = sa.text(
    f"WITH old AS (DELETE FROM commit_mark WHERE made < now() - interval '{MARK_SECONDS} s')"  # noqa: S608 - a constant
    " INSERT INTO commit_mark (mark) VALUES (:mark)"
)
_OUTCOME = sa.text("SELECT EXISTS (SELECT FROM commit_mark WHERE mark = :mark)")

_LOST = VaultUnavailable("The vault's database server does not answer; try again.")
# SQLSTATE, or the class that it begins with: https://www.postgresql.org/docs/current/errcodes-appendix.html
_FAULTS: dict[str, Fault] = {
    "08": Fault(Kind.LOST, _LOST),
    "57P": Fault(Kind.LOST, _LOST),
    "25P03": Fault(Kind.LOST, _LOST),
    "40001": Fault(Kind.CONFLICT, VaultUnavailable("Other daemons change the vault at the same time; try again.")),
    "40P01": Fault(Kind.CONFLICT, VaultUnavailable("Other daemons change the vault at the same time; try again.")),
    "55P03": Fault(Kind.CONFLICT, VaultUnavailable("Another daemon holds the vault; try again.")),
    "57014": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault's database server took too long; try again.")),
    "53100": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault cannot be changed: its server's disk is full.")),
    "53": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault's database server has no room for more; try again.")),
    "25006": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault cannot be changed: its database is read-only.")),
    "42501": Fault(Kind.UNAVAILABLE, VaultUnavailable("The database user lacks a privilege that the vault needs.")),
    "58": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault's database server reports a fault of its system.")),
    "28": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault's database server refuses its user.")),
    "3F": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault's database has no schema that its user may use.")),
    "42P01": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault's tables are not in the schema that its user uses.")),
    "3D000": Fault(Kind.UNAVAILABLE, VaultUnavailable("The vault's database does not exist on its server.")),
}


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

        class Connection(psycopg.Connection[Any]):
            """A connection whose waits end even if the server hangs."""

            def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
                try:
                    return super().wait(_bounded(gen), *args, **kwargs)
                except TimeoutError as error:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("no answer") from error

        self._shown = url.set(query={}).render_as_string(hide_password=True)
        self.writer = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            # Settings apply only after authentication; all travel in one round trip.
            pool_pre_ping=True,
            pool_recycle=RECYCLE_SECONDS,
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
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
        sa.event.listen(self.writer, "do_connect", lambda _, __, args, options: Connection.connect(*args, **options))
        sa.event.listen(self.writer, "connect", _set_up)
        self.reader: sa.Engine = self.writer.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    def probe(self) -> schema.Found:
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
        connection.execute(_BEGIN)

    def mark(self, connection: sa.Connection) -> str | None:
        # A mark of our own, because after a crash the server may reuse the number of a transaction.
        if not sa.inspect(connection).has_table("commit_mark"):
            # A backup of an older schema is being restored, into an empty database.
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

    def diagnose(self, error: DBAPIError) -> Fault | None:
        state = getattr(error.orig, "sqlstate", None)
        if state is None:
            lost = error.connection_invalidated or isinstance(error, sa.exc.OperationalError)
            return Fault(Kind.LOST, _LOST) if lost else None
        matching = [known for known in _FAULTS if state.startswith(known)]
        return _FAULTS[max(matching, key=len)] if matching else None


def _set_up(connection: Any, _: object) -> None:
    connection.autocommit = True
    connection.execute(_SETTINGS)
    connection.autocommit = False


def _bounded(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Relay psycopg's wait and its protocol for at most :data:`ANSWER_SECONDS`.

    :raises TimeoutError: they were not done by then.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        wanted = next(steps)
        while True:
            # Falsy several times a second while nothing comes.
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise TimeoutError
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value
