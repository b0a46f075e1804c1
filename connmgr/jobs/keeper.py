"""Removes expired jobs, and their files on the far side."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta

from connmgr.jobs.jobs import CALL_SECONDS, Jobs, far_name
from connmgr.jobs.reach import Reach
from connmgr.jobs.spool import Spool
from connmgr.links.table import IdleLinks
from connmgr.vault import Vault
from connmgr.vault.jobs import ENDED, UNDER_WAY, JobFilter, StoredJob
from connmgr.vault.schema import now

logger = logging.getLogger("connmgr.jobs")

INTERVAL_SECONDS = 30.0
IDLE_SECONDS = 60.0
"""Time for which a link stays open, and a job's state is cached, after the last request."""

UNREACHED = timedelta(days=30)
"""Time after which a job is removed from the vault even if its files on the far side could not be."""


class Keeper:
    """A thread that looks at the vault's jobs with an open link, and removes expired ones.

    It also releases ``kept`` links.
    """

    def __init__(self, vault: Vault, jobs: Jobs, reach: Reach, kept: IdleLinks) -> None:
        self._vault = vault
        self._jobs = jobs
        self._reach = reach
        self._kept = kept
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread, within about ``timeout`` seconds."""
        self._closing.set()
        self._thread.join(timeout)

    def tidy(self) -> None:
        """Record the ends of jobs, and remove expired ones."""
        self._kept.let_go(IDLE_SECONDS)
        self._jobs.let_go(IDLE_SECONDS)
        self._jobs.refresh(self._vault.jobs.find(JobFilter(states=UNDER_WAY)))
        for job in self._vault.jobs.find(JobFilter(states=ENDED)):
            if kept_until(job) < now() and (self._cleared(job) or kept_until(job) + UNREACHED < now()):
                self._jobs.forget(job)

    def _cleared(self, job: StoredJob) -> bool:
        def remove(spool: Spool) -> bool:
            spool.remove([far_name(job.id)], CALL_SECONDS)
            return True

        return bool(self._reach.ask_at_once(job.connection, remove))

    def _run(self) -> None:
        while not self._closing.wait(INTERVAL_SECONDS):
            try:
                self.tidy()
            except BaseException:
                # The vault may be unavailable now, and a plugin may raise any exception; the next round tries again.
                logger.exception("The jobs could not be tidied.")


def kept_until(job: StoredJob) -> datetime:
    """Return the time after which an ended job is removed."""
    return (job.ended or job.created) + timedelta(seconds=job.keep)
