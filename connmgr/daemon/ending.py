"""Ends everything that runs by a token that has become invalid."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from connmgr.errors import ConnmgrError, JobFinished
from connmgr.jobs.jobs import Jobs
from connmgr.pipes.streams import Streams
from connmgr.secrets.principals import Access
from connmgr.terminals.terminals import Terminals
from connmgr.tunnels.table import Tunnels
from connmgr.vault import Vault
from connmgr.vault.jobs import UNDER_WAY, JobFilter

logger = logging.getLogger("connmgr.rights")

GRACE_SECONDS = 2.0
"""Time for a job to end after TERM, before KILL."""


class Ending:
    """Ends streams, terminals, tunnels and jobs; commands end by themselves (:attr:`connmgr.api.auth.Caller.ended`)."""

    def __init__(self, vault: Vault, streams: Streams, terminals: Terminals, tunnels: Tunnels, jobs: Jobs) -> None:
        self._vault, self._streams, self._terminals, self._jobs = vault, streams, terminals, jobs
        self._tunnels = tunnels

    def __call__(self, reasons: Mapping[str, ConnmgrError], with_jobs: bool) -> None:
        """End all that tokens run, each for its reason; jobs, whose machines must be asked, are ended in a thread."""
        for token, why in reasons.items():
            self._streams.end([token], why)
        tokens = list(reasons)
        self._terminals.end(tokens)
        self._tunnels.end(tokens)
        if with_jobs and (jobs := self._vault.jobs.find(JobFilter(states=UNDER_WAY, tokens=tokens))):
            ids = [job.id for job in jobs]
            threading.Thread(target=self._kill, args=(ids,), name="end-jobs", daemon=True).start()

    def _kill(self, ids: Collection[str]) -> None:
        for id in ids:
            try:
                # With the daemon's own access only: revoking a token must not open secrets for it.
                self._jobs.kill(id, Access(), "TERM", GRACE_SECONDS)
            except JobFinished:
                continue
            except ConnmgrError as error:
                logger.warning("Job %s of a revoked token runs on: %s", id, error.message)
