"""The vault's database: opened without touching it, then read and written in transactions that survive its faults."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from connmgr.errors import ConnmgrError, VaultUnavailable
from connmgr.vault import schema

Result = TypeVar("Result")

FILE_NAME = "vault.db"
WRITE_TIMEOUT = 10.0
"""Seconds that a change may wait for others, its repetitions after conflicts included."""

_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


class Kind(Enum):
    """What can be done about a database error."""

    CONFLICT = "another writer was in the way: repeat the transaction"
    LOST = "the connection is gone: repeat on a new one"
    UNAVAILABLE = "the database does not do this now"


@dataclass(frozen=True)
class Fault:
    """A database error as the rest of the program sees it."""

    kind: Kind
    error: ConnmgrError


class Backend(Protocol):
    """What differs between the databases that can hold a vault."""

    reader: sa.Engine
    """Its transactions see one unchanging state and write nothing."""

    writer: sa.Engine

    def probe(self) -> schema.Found:
        """Check the database without changing a byte of it, and return what it holds.

        :raises StartupError: it cannot be reached, is damaged, not a vault, or newer than the program.
        """

    def prepare(self) -> None:
        """Make the place that the database needs, where there is none yet."""

    def begin(self, connection: sa.Connection) -> None:
        """Begin a transaction that is alone in writing."""

    def mark(self, connection: sa.Connection) -> str | None:
        """Leave a mark in a transaction that is about to be committed, for :meth:`outcome`; None where none is needed.

        It is the last that is done in the transaction.
        """

    def outcome(self, mark: str) -> bool:
        """Whether the transaction that left ``mark`` was committed; it waits until that has ended."""

    def scrub(self) -> bool:
        """Take from the disk what was deleted or overwritten, as far as the database lets one.

        Return whether it is done; what readers or another process keep from being taken is taken by a later call.
        """

    def diagnose(self, error: DBAPIError) -> Fault | None:
        """Return what an error means, or None for one that is connmgr's own fault."""


class _Repeat(Exception):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault


class Database:
    """A vault's database, made by :func:`open_database`; safe to use from several threads.

    Work on it is a function of a connection, called within a transaction that ends with it. A function given to
    :meth:`write` may be called again after a conflict or a lost connection, whose first call then left nothing behind.
    """

    def __init__(self, backend: Backend, found: schema.Found) -> None:
        self._backend = backend
        # Writers of this process queue here, fairly and without holding a connection each.
        self._writing = threading.Lock()
        self._unscrubbed = False
        self.empty = found.revision is None
        """Whether nothing was in it when it was opened."""
        self.key_verifier = found.verifier
        """What the vault recognises its key by, as it was when it was opened; None when it was empty."""
        self.check: Callable[[sa.Connection], None] = lambda _: None
        """Called first in every writing transaction; it raises where the vault has become one of another key."""

    def read(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Return what ``work`` returns, called on one consistent state of the database.

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
        self, work: Callable[[sa.Connection], Result], *, timeout: float = WRITE_TIMEOUT, erases: bool = False
    ) -> Result:
        """Return what ``work`` returns, called while nobody else writes; it is stored durably then, or not at all.

        With ``erases``, for work that deletes or overwrites secrets, what it removed leaves the disk as well.
        :raises VaultUnavailable: other writers held the database for ``timeout`` seconds, or it cannot be written to;
            nothing was stored, unless the message says that it is not known.
        """
        deadline = time.monotonic() + timeout
        if not self._writing.acquire(timeout=timeout):
            raise VaultUnavailable("Other changes to the vault take too long; try again.")
        try:
            result = self._write(work, deadline)
            self._unscrubbed = self._unscrubbed or erases
            if self._unscrubbed:
                self._unscrubbed = not self._backend.scrub()
            return result
        finally:
            self._writing.release()

    def prepare(self) -> None:
        """Make what the database needs before it is first written to."""
        self._backend.prepare()

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._backend.writer.dispose()

    def _attempt_read(self, work: Callable[[sa.Connection], Result]) -> Result:
        try:
            with self._backend.reader.begin() as connection:
                return work(connection)
        except (DBAPIError, PoolTimeout) as error:
            raise self._repeat(error) from error

    def _write(self, work: Callable[[sa.Connection], Result], deadline: float) -> Result:
        pause, lost = _PAUSE, False
        while True:
            try:
                return self._attempt_write(work, deadline)
            except _Repeat as repeat:
                fault, cause = repeat.fault, repeat.__cause__
            over = time.monotonic() + pause > deadline or (lost and fault.kind is Kind.LOST)
            if over or fault.kind is Kind.UNAVAILABLE:
                raise fault.error from cause
            lost = lost or fault.kind is Kind.LOST
            # At random, so that daemons which met do not meet again.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE)

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
            unanswered = committing and mark is not None and repeat.fault.kind is Kind.LOST
            if unanswered and mark is not None and self._committed(mark, deadline):
                return result
            raise repeat from error

    def _committed(self, mark: str, deadline: float) -> bool:
        pause = _PAUSE
        while time.monotonic() < deadline:
            try:
                return self._backend.outcome(mark)
            except (DBAPIError, PoolTimeout) as error:
                self._repeat(error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise VaultUnavailable(
            "The database was lost while a change was being stored; look whether it was, before repeating it."
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
