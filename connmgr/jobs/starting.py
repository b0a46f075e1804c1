"""Starts jobs: on the far side, and in the vault."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

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
        self._of_tokens = 0

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
        with self._room(job):
            cancellation.require()
            if job.key is None:
                # Simultaneously, because the commit waits for a disk and the far side for its processes.
                with self._beginning(job.id), ThreadPoolExecutor(1, "job-row") as pool:
                    adding = pool.submit(self._vault.jobs.add, job)
                    return self._run(job, spool, launch, adding.result)
            stored = self._vault.jobs.add(job)
            followed = self._jobs.follow(stored)
            with followed.reading():
                if stored.id != job.id and (
                    stored.state != STARTING or followed.begun or self._is_there(spool, stored)
                ):
                    return stored, None
                return self._run(stored, spool, launch, lambda: stored)

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
        self, job: StoredJob, spool: Spool, launch: Launch, row: Callable[[], StoredJob]
    ) -> tuple[StoredJob, str | None]:
        """Start a job on the far side, and wait for its ``row``; if one of the two fails, undo the other."""
        followed = self._jobs.follow(job)
        name, warning = far_name(job.id), None
        try:
            warning = spool.start(replace(launch, id=name), CALL_SECONDS).warning
        except errors.FileExists:
            # Another daemon of the vault got the same request.
            return row(), None
        except UNREACHABLE:
            raise
        except errors.ConnmgrError:
            self._jobs.forget(row())
            raise
        try:
            stored = row()
        except errors.ConnmgrError:
            spool.kill(name, "KILL", 0, CALL_SECONDS)
            spool.remove([name], CALL_SECONDS)
            raise
        followed.begun = True
        return stored, warning

    def _is_there(self, spool: Spool, job: StoredJob) -> bool:
        return self._jobs.seen(spool, job.id).state != GONE

    @contextmanager
    def _room(self, job: StoredJob) -> Iterator[None]:
        """Require room for ``job``; among tokens, those count too that are being started at the same time."""
        with self._lock:
            self._of_tokens += job.token is not None
        try:
            self._require_room(job)
            yield
        finally:
            with self._lock:
                self._of_tokens -= job.token is not None

    def _require_room(self, job: StoredJob) -> None:
        require = partial(
            self._vault.jobs.require_room,
            job.connection,
            most_of_connection=self._limits.of_connection,
            most=self._limits.in_all,
            token=job.token,
        )
        try:
            require(starting=self._of_tokens - 1)
        except errors.JobLimit:
            # Some may have ended unnoticed.
            self._jobs.refresh(self._vault.jobs.find(JobFilter(states=UNDER_WAY)))
            require(starting=self._of_tokens - 1)
