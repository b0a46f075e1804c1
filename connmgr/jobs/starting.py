"""Starts jobs: on the far side, and in the vault."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from connmgr import errors
from connmgr.cancellation import NEVER, Cancellation
from connmgr.jobs.jobs import CALL_SECONDS, GONE, Jobs, far_name
from connmgr.jobs.launch import Launch
from connmgr.jobs.reach import UNREACHABLE
from connmgr.jobs.spool import Spool
from connmgr.vault import Vault
from connmgr.vault.jobs import STARTING, UNDER_WAY, JobFilter, StoredJob


@dataclass(frozen=True)
class JobLimits:
    """Most jobs under way on one connection, and in the vault."""

    of_connection: int
    in_all: int


class Starts:
    """Starts jobs of the vault. Safe to use from several threads."""

    def __init__(self, vault: Vault, jobs: Jobs, limits: JobLimits) -> None:
        self._vault = vault
        self._jobs = jobs
        self._limits = limits
        self._lock = threading.Lock()
        self._under_way: set[str] = set()

    @property
    def under_way(self) -> frozenset[str]:
        """The jobs that are being started; the far side may have them before the vault does."""
        with self._lock:
            return frozenset(self._under_way)

    def start(
        self, job: StoredJob, launch: Launch, spool: Spool, cancellation: Cancellation = NEVER
    ) -> tuple[StoredJob, str | None]:
        """Start ``job`` as ``launch`` in ``spool``, or find the job of its connection with the same key.

        Return the job, and a warning about the far side, if any.
        :raises connmgr.errors.CommandCancelled: it was cancelled before it was stored.
        :raises connmgr.errors.InvalidRequest: its connection is a temporary one.
        :raises connmgr.errors.JobLimit: too many are under way.
        :raises connmgr.errors.ConnmgrError: the far side refused it, and nothing is left there; or the link broke, and
            it is unknown whether the job runs, which a start with the same key finds out.
        """
        if self._vault.connections.temporary.get(job.connection) is not None:
            raise errors.InvalidRequest("connection: A temporary connection has no jobs. Store it first.")
        self._require_room(job.connection)
        cancellation.require()
        if job.key is None:
            with self._beginning(job.id):
                return self._run(job, spool, launch)
        stored = self._vault.jobs.add(job)
        followed = self._jobs.follow(stored)
        with followed.reading():
            if stored.id != job.id and (stored.state != STARTING or followed.begun or self._is_there(spool, stored)):
                return stored, None
            return self._run(stored, spool, launch, is_stored=True)

    @contextmanager
    def _beginning(self, id: str) -> Iterator[None]:
        with self._lock:
            self._under_way.add(id)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(id)

    def _run(
        self, job: StoredJob, spool: Spool, launch: Launch, *, is_stored: bool = False
    ) -> tuple[StoredJob, str | None]:
        """Start a job on the far side, and store it meanwhile; if one of the two fails, undo the other."""
        failure: errors.ConnmgrError | None = None

        def store() -> None:
            nonlocal is_stored, failure
            try:
                if not is_stored:
                    self._vault.jobs.add(job)
                is_stored = True
            except errors.ConnmgrError as error:
                failure = error

        followed = self._jobs.follow(job)
        name, warning = far_name(job.id), None
        try:
            # The commit waits for a disk while the far side waits for its processes; no thread is needed for that.
            warning = spool.start(replace(launch, id=name), CALL_SECONDS, store).warning
        except errors.FileExists:
            # Another daemon of the vault got the same request.
            return job, None
        except UNREACHABLE:
            # Nobody knows whether it runs.
            raise
        except errors.ConnmgrError:
            if is_stored:
                self._jobs.forget(job)
            raise
        if failure is not None:
            spool.kill(name, "KILL", 0, CALL_SECONDS)
            spool.remove([name], CALL_SECONDS)
            raise failure
        followed.begun = True
        return job, warning

    def _is_there(self, spool: Spool, job: StoredJob) -> bool:
        return self._jobs.seen(spool, job.id).state != GONE

    def _require_room(self, connection: str) -> None:
        most = {"most_of_connection": self._limits.of_connection, "most": self._limits.in_all}
        try:
            self._vault.jobs.require_room(connection, **most)
        except errors.JobLimit:
            # Some may have ended unnoticed.
            self._jobs.refresh(self._vault.jobs.find(JobFilter(states=UNDER_WAY)))
            self._vault.jobs.require_room(connection, **most)
