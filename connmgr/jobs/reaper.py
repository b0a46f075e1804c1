"""Removes expired jobs, and finds orphans: jobs on a remote host that the vault does not know.

A restored backup, a removed connection and an unreachable machine leave orphans. They belong to a lost vault or to
another one, or are younger than the backup.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from connmgr.contract.job import LEAST_AGE_SECONDS
from connmgr.jobs.jobs import CALL_SECONDS, GONE, Jobs, remote_name
from connmgr.jobs.remote import RemoteHosts, RemoteJobs
from connmgr.links.table import IdleLinks
from connmgr.plugin import Deadline
from connmgr.poller import Poller, Trouble
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.jobs import ENDED, RUNNING, JobFilter, StoredJob
from connmgr.vault.schema import now

logger = logging.getLogger("connmgr.jobs")

INTERVAL_SECONDS = 30.0

REPORTED_SECONDS = 5.0
"""A request that waits for a job's end reports it within this time, or not at all."""

IDLE_SECONDS = 60.0
"""Time for which a link stays open, and a job's state is cached, after the last request."""

UNREACHED = timedelta(days=30)
"""Time after which a job is removed from the vault even if its files on the remote host could not be removed."""

CLEAR_SECONDS = 5.0
"""Time to clear the remote hosts of removed connections, for all together."""


class Reaper:
    """A thread that looks at the vault's jobs with an open link, and removes expired ones.

    It calls ``ended`` with each job whose end this daemon has seen and no request has reported. It also releases
    ``idle_links``.
    """

    def __init__(
        self, vault: Vault, jobs: Jobs, hosts: RemoteHosts, idle_links: IdleLinks, ended: Callable[[StoredJob], object]
    ) -> None:
        self._vault = vault
        self._jobs = jobs
        self._hosts = hosts
        self._idle_links = idle_links
        self._ended = ended
        trouble = Trouble(logger, "The jobs cannot be tidied now", "The jobs are tidied again.")
        self._poller = Poller("jobs", self._tidy, INTERVAL_SECONDS, logger, trouble)
        self._poller.begin()

    def close(self, timeout: float) -> None:
        """End the thread, within about ``timeout`` seconds."""
        self._poller.close(timeout)
        self._report(0.0)

    def _tidy(self) -> float:
        """Record the ends of jobs, and remove expired ones; return the seconds until the next time."""
        self._idle_links.let_go(IDLE_SECONDS)
        self._jobs.let_go(IDLE_SECONDS)
        self._jobs.refresh(self._vault.jobs.under_way())
        self._report(REPORTED_SECONDS)
        for job in self._vault.jobs.find(JobFilter(states=ENDED)):
            if kept_until(job) < now() and (self._cleared(job) or kept_until(job) + UNREACHED < now()):
                self._jobs.forget(job)
        return INTERVAL_SECONDS

    def _report(self, seconds: float) -> None:
        for job in self._jobs.take_unreported(seconds):
            self._ended(job)

    def _cleared(self, job: StoredJob) -> bool:
        def remove(remote: RemoteJobs) -> bool:
            remote.remove([remote_name(job.id)], CALL_SECONDS)
            return True

        return bool(self._hosts.ask_at_once(job.connection, remove))


def kept_until(job: StoredJob) -> datetime:
    """Return the time after which an ended job is removed."""
    return (job.ended or job.created) + timedelta(seconds=job.keep)


@dataclass(frozen=True)
class OrphanJob:
    """A job that the vault does not know: its state, and its age in seconds if the remote host can tell."""

    job: str
    state: str
    age: int | None
    removed: bool = False


class OrphanJobs:
    """Finds orphans, and removes them when asked. Safe to use from several threads."""

    def __init__(self, vault: Vault, hosts: RemoteHosts, jobs: Jobs) -> None:
        self._vault = vault
        self._hosts = hosts
        self._jobs = jobs

    def find(self, connection: str, access: Access, least_age: float, *, remove: bool) -> list[OrphanJob]:
        """Return the orphans that began at least ``least_age`` seconds ago, and at least a minute ago.

        With ``remove``, orphans that have ended are removed. Running orphans stay, because they may be jobs of another
        vault.
        :raises connmgr.errors.ConnmgrError: the errors of opening a link, or an orphan cannot be removed.
        """
        # At least a minute, because another daemon of the vault may have begun a younger job and not stored it yet.
        age = max(math.ceil(least_age), LEAST_AGE_SECONDS)
        orphans = self._hosts.ask(connection, access, partial(self._orphans, age), shared=False)
        over = [remote_name(orphan.job) for orphan in orphans if remove and orphan.state != RUNNING]
        if over:
            self._hosts.ask(connection, access, lambda remote: remote.remove(over, CALL_SECONDS), shared=False)
        return [replace(orphan, removed=remove and orphan.state != RUNNING) for orphan in orphans]

    def clear(self, jobs: Mapping[str, Sequence[str]]) -> int:
        """Remove the files of ``jobs``, given by removed connections; return how many stay.

        Jobs stay if they run, are just starting, or their machine has no open link.
        """
        deadline, remaining = Deadline(CLEAR_SECONDS), 0
        for connection, ids in jobs.items():
            left_there = self._hosts.ask_at_once(connection, partial(self._clear, ids, deadline))
            remaining += len(ids) if left_there is None else left_there
            for id in ids:
                self._jobs.drop(id)
        return remaining

    def _orphans(self, least_age: int, remote: RemoteJobs) -> list[OrphanJob]:
        # In this order: a job has its row before its start is over, and leaves the remote host before its row is
        # removed. So a job that is started or removed meanwhile does not count as an orphan.
        ages = {str(uuid.UUID(name)): age for name, age in remote.list(CALL_SECONDS, least_age).items()}
        strange = ages.keys() - self._jobs.starting
        strange -= self._vault.jobs.known(strange)
        by_name = {remote_name(id): id for id in sorted(strange)}
        states = remote.look(by_name, CALL_SECONDS)
        return [
            OrphanJob(id, states[name].state, ages[id]) for name, id in by_name.items() if states[name].state != GONE
        ]

    def _clear(self, ids: Sequence[str], deadline: Deadline, remote: RemoteJobs) -> int:
        starting = self._jobs.starting
        states = remote.look(map(remote_name, ids), deadline.left())
        over = [remote_name(id) for id in ids if states[remote_name(id)].state != RUNNING and id not in starting]
        remote.remove(over, deadline.left())
        return len(ids) - len(over)
