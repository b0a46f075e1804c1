"""The vault's database: opened without changing it, then used in transactions that survive its faults.

Daemons that share a vault on PostgreSQL announce to each other that there is something new. An announcement belongs to
the transaction of a change, and is heard when that is committed (``NOTIFY`` of PostgreSQL). One may be lost, with a
link or behind a pooler that shares sessions: whoever listens looks now and then anyway, and only later.
"""

from __future__ import annotations

import logging
import random
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from connmgr.errors import ConnmgrError, VaultUnavailable
from connmgr.poller import Trouble
from connmgr.vault import schema

Result = TypeVar("Result")

FILE_NAME = "vault.db"
WRITE_SECONDS = 10.0
"""Longest time of a change, with its waits for other writers and its repetitions after conflicts."""

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.5


class Kind(Enum):
    """The reaction to a database error."""

    CONFLICT = "another writer was in the way: repeat the transaction"
    LOST = "the connection is gone: repeat on a new one"
    UNAVAILABLE = "the database does not do this now"


@dataclass(frozen=True)
class Fault:
    """A database error in the program's terms."""

    kind: Kind
    error: ConnmgrError


class Listening(Protocol):
    """A link to the database on which announcements are heard. For one thread."""

    def fileno(self) -> int:
        """The descriptor that becomes readable when something may have come."""

    def take(self) -> set[str]:
        """Return the topics that others have announced since the last call.

        :raises VaultUnavailable: the link is gone.
        """

    def check(self) -> None:
        """Return if the database answers.

        :raises VaultUnavailable: it does not.
        """

    def close(self) -> None: ...


class Backend(Protocol):
    """The differences between the databases that can hold a vault."""

    reader: sa.Engine
    """Its transactions read one snapshot and write nothing."""

    writer: sa.Engine

    is_shared: bool
    """Whether daemons on several machines may use the database."""

    def now(self) -> datetime:
        """Return the time by the clock of all who use the database, without asking for it."""

    def probe(self) -> schema.StoredSchema:
        """Return the content of the database, without changing it.

        :raises StartupError: it cannot be reached, is damaged, not a vault, or newer than the program.
        """

    def prepare(self) -> None:
        """Create the database's directory or file if it is missing."""

    def begin(self, connection: sa.Connection) -> None:
        """Begin a transaction that excludes other writers."""

    def mark(self, connection: sa.Connection) -> str | None:
        """Leave a mark for :meth:`outcome` as the last step before a commit; return None if none is needed."""

    def outcome(self, mark: str) -> bool:
        """Whether the transaction that left ``mark`` was committed; waits until it has ended."""

    def scrub(self) -> bool:
        """Erase deleted and overwritten content from the disk, as far as the database can; return whether that is done.

        If a reader or another process prevents it, a later call erases the rest.
        """

    def announce(self, connection: sa.Connection, topic: str) -> None:
        """Tell all daemons of the vault of ``topic`` once the transaction is committed."""

    def listen(self) -> Listening:
        """Return a link on which announcements are heard; only of a shared database."""

    def diagnose(self, error: DBAPIError) -> Fault | None:
        """Return the meaning of an error, or None if the fault is connmgr's own."""


class _Repeat(Exception):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault


class Database:
    """A vault's database, made by :func:`open_database`; safe to use from several threads.

    Work on it is a function of a connection, called within a transaction that ends with it. After a conflict or a lost
    connection :meth:`write` calls the function again; the first transaction was rolled back.
    """

    def __init__(self, backend: Backend, stored: schema.StoredSchema) -> None:
        self._backend = backend
        # Writers of this process queue here, in order and without holding a connection each.
        self._writing = threading.Lock()
        # A process that was killed may have left what it had not erased yet; to open the vault writes. A new vault is
        # soon in its file as well, and not in the log alone.
        self._unscrubbed = True
        self.changes = 0
        """How many transactions have changed the vault, but for those of :meth:`write_beside`."""
        self.empty = stored.revision is None
        """Whether the database was empty when it was opened."""
        self.key_verifier = stored.verifier
        """The verifier of the vault's key when it was opened; None if it was empty."""
        self.is_shared = backend.is_shared
        """Whether daemons on several machines may use the database."""
        self.check: Callable[[sa.Connection], None] = lambda _: None
        """Called first in every writing transaction; raises if the vault's key was rotated."""

    def now(self) -> datetime:
        """Return the time by which rights end, aware and in UTC: by one clock for all daemons of the vault."""
        return self._backend.now()

    def read(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Return the result of ``work``, called on one snapshot of the database.

        :raises VaultUnavailable: the database does not answer.
        """
        try:
            return self._attempt_read(work)
        except _Repeat as repeat:
            if repeat.fault.kind is not Kind.LOST:
                raise repeat.fault.error from repeat.__cause__
        try:
            return self._attempt_read(work)
        except _Repeat as repeat:
            raise repeat.fault.error from repeat.__cause__

    def write(
        self,
        work: Callable[[sa.Connection], Result],
        *,
        timeout: float = WRITE_SECONDS,
        erases: bool | Callable[[Result], bool] = False,
    ) -> Result:
        """Return the result of ``work``, called while other writers wait; all its changes are stored durably, or none.

        ``erases`` says, maybe by the result, that ``work`` deletes or overwrites secrets; they are erased from the disk
        too.
        :raises VaultUnavailable: other writers held the database for ``timeout`` seconds, or it cannot be written;
            nothing was stored, unless the message says that this is unknown.
        """
        deadline = time.monotonic() + timeout
        # Queued here and not in the database: SQLite's busy handler polls and is not fair, and on PostgreSQL each
        # waiting writer would hold a connection of the pool.
        if not self._writing.acquire(timeout=timeout):
            raise VaultUnavailable("Other changes to the vault take too long; try again.")
        try:
            result = self._write(work, deadline)
            self.changes += 1
            self._unscrubbed = self._unscrubbed or (erases(result) if callable(erases) else erases)
            if self._unscrubbed:
                self._unscrubbed = not self._backend.scrub()
            return result
        finally:
            self._writing.release()

    def write_beside(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Return the result of ``work``, which changes rows of this daemon alone, and waits for no other writer.

        :raises VaultUnavailable: the database does not answer; whether anything was stored is unknown.
        """
        try:
            with self._backend.writer.begin() as connection:
                return work(connection)
        except (DBAPIError, PoolTimeout) as error:
            repeat = self._repeat(error)
            raise repeat.fault.error from error

    def announce(self, connection: sa.Connection, topic: str) -> None:
        """Tell all daemons of the vault of ``topic`` once the transaction of ``connection`` is committed."""
        self._backend.announce(connection, topic)

    def listen(self) -> Listening:
        """Return a link on which announcements are heard; only of a shared database.

        :raises VaultUnavailable: the database does not answer.
        """
        try:
            return self._backend.listen()
        except (DBAPIError, PoolTimeout) as error:
            raise self._repeat(error).fault.error from error

    def prepare(self) -> None:
        """Prepare the database for the first write."""
        self._backend.prepare()

    def close(self) -> None:
        """Close all idle connections."""
        self._backend.writer.dispose()

    def _attempt_read(self, work: Callable[[sa.Connection], Result]) -> Result:
        try:
            with self._backend.reader.begin() as connection:
                return work(connection)
        except (DBAPIError, PoolTimeout) as error:
            raise self._repeat(error) from error

    def _write(self, work: Callable[[sa.Connection], Result], deadline: float) -> Result:
        pause, lost = _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                return self._attempt_write(work, deadline)
            except _Repeat as repeat:
                fault, cause = repeat.fault, repeat.__cause__
            over = time.monotonic() + pause > deadline or (lost and fault.kind is Kind.LOST)
            if over or fault.kind is Kind.UNAVAILABLE:
                raise fault.error from cause
            lost = lost or fault.kind is Kind.LOST
            # Random, so that daemons that collided do not collide again.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _attempt_write(self, work: Callable[[sa.Connection], Result], deadline: float) -> Result:
        mark, committing = None, False
        try:
            with self._backend.writer.connect() as connection:
                self._backend.begin(connection)
                self.check(connection)
                result = work(connection)
                mark = self._backend.mark(connection)
                committing = True
                connection.commit()
                return result
        except (DBAPIError, PoolTimeout) as error:
            repeat = self._repeat(error)
            # The connection broke between COMMIT and its answer: the server may or may not have committed. Only the
            # mark tells; repeating the change blindly could make it twice.
            unanswered = committing and mark is not None and repeat.fault.kind is Kind.LOST
            if unanswered and mark is not None and self._committed(mark, deadline):
                return result
            raise repeat from error

    def _committed(self, mark: str, deadline: float) -> bool:
        pause = _FIRST_PAUSE_SECONDS
        while time.monotonic() < deadline:
            try:
                return self._backend.outcome(mark)
            except (DBAPIError, PoolTimeout) as error:
                self._repeat(error)
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        raise VaultUnavailable(
            "The link to the database broke during a change: check whether the change is stored before you repeat it."
        )

    def _repeat(self, error: DBAPIError | PoolTimeout) -> _Repeat:
        if isinstance(error, PoolTimeout):
            return _Repeat(
                Fault(Kind.UNAVAILABLE, VaultUnavailable("Every connection to the vault's database is in use."))
            )
        fault = self._backend.diagnose(error)
        if fault is None:
            raise error
        return _Repeat(fault)


logger = logging.getLogger("connmgr.vault")

RETRY_SECONDS = 2.0
"""Time until the next attempt to listen after the database did not answer."""

ALIVE_SECONDS = 60.0
"""Silence after which the link to the database is asked whether it lives."""


class Announcements:
    """Calls the subscribers of a topic, in a separate thread. Safe to use from several threads.

    On SQLite, whose vault belongs to one process, nothing is announced and there is no thread.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._callbacks: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._awake: socket.socket | None = None

    def on(self, topic: str, callback: Callable[[], object]) -> None:
        """Have ``callback``, which must not wait, called when others announce ``topic``; before :meth:`begin`."""
        self._callbacks[topic].append(callback)

    def begin(self) -> None:
        """Listen from now on."""
        if self._database.is_shared and self._thread is None:
            waking, self._awake = socket.socketpair()
            self._thread = threading.Thread(target=self._run, args=(waking,), name="announcements", daemon=True)
            self._thread.start()

    def close(self, timeout: float) -> None:
        """Listen no more."""
        self._closing.set()
        if self._thread is not None and self._awake is not None:
            self._awake.close()
            self._thread.join(timeout)

    def _run(self, waking: socket.socket) -> None:
        trouble = Trouble(
            logger, "What other daemons announce is not heard for now", "What other daemons announce is heard again."
        )
        with waking:
            while not self._closing.is_set():
                try:
                    with closing(self._database.listen()) as listening:
                        trouble.end()
                        # What was announced while nobody listened is not known.
                        self._call(set(self._callbacks))
                        self._hear(listening, waking)
                except VaultUnavailable as error:
                    trouble.note(error.message)
                except Exception:
                    logger.exception("What other daemons announce is not heard for now.")
                self._closing.wait(RETRY_SECONDS)

    def _hear(self, listening: Listening, waking: socket.socket) -> None:
        """Call the callbacks of what is announced, until :meth:`close`."""
        with selectors.DefaultSelector() as selector:
            selector.register(listening, selectors.EVENT_READ)
            selector.register(waking, selectors.EVENT_READ)
            while not self._closing.is_set():
                if not selector.select(ALIVE_SECONDS):
                    listening.check()
                self._call(listening.take())

    def _call(self, topics: set[str]) -> None:
        for topic in topics:
            for callback in self._callbacks[topic]:
                callback()
