"""Ends everything that runs by a token that has become invalid, or by a loan of secrets that has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any

from connmgr.api.context import note_loan
from connmgr.audit.log import AuditLog
from connmgr.errors import ConnmgrError, JobFinished
from connmgr.jobs.jobs import Jobs
from connmgr.multiplex.sockets import ControlSockets
from connmgr.pipes.streams import Streams
from connmgr.runs.runs import Runs
from connmgr.secrets.loans import Loan, Loans, loan_over
from connmgr.secrets.principals import Access
from connmgr.terminals.terminals import Terminals
from connmgr.tunnels.table import Tunnels
from connmgr.vault import Vault
from connmgr.vault.jobs import UNDER_WAY, JobFilter

logger = logging.getLogger("connmgr.rights")

LOAN_ENDED, LOAN_USED = "loan ended", "loan used"
"""The events of entries of the audit log that are not about a request."""

GRACE_SECONDS = 2.0
"""Time for a job to end after TERM, before KILL."""


class Ending:
    """Ends streams, terminals, tunnels, control sockets, runs and jobs.

    Commands end by themselves (:attr:`connmgr.api.auth.Caller.ended`).
    """

    def __init__(
        self,
        vault: Vault,
        streams: Streams,
        terminals: Terminals,
        tunnels: Tunnels,
        sockets: ControlSockets,
        jobs: Jobs,
        loans: Loans,
        audit: AuditLog,
    ) -> None:
        self._vault, self._streams, self._terminals, self._jobs = vault, streams, terminals, jobs
        self._tunnels, self._sockets, self._loans, self._audit = tunnels, sockets, loans, audit
        self.runs: Runs | None = None
        """Set when it is made, because it needs the tokens in use, which need this object."""

    def __call__(self, reasons: Mapping[str, ConnmgrError], with_jobs: bool) -> None:
        """End all that tokens run, each for its reason; jobs, whose machines must be asked, are ended in a thread."""
        for token, why in reasons.items():
            self._streams.end([token], why)
        tokens = list(reasons)
        self._sockets.end(tokens)
        for token, why in reasons.items():
            self._loans.end([token], f"the token is not valid: {why.message}")
        self._terminals.end(tokens)
        self._tunnels.end(tokens)
        if self.runs is not None:
            self.runs.stop_those_of(reasons)
        if with_jobs and (jobs := self._vault.jobs.find(JobFilter(states=UNDER_WAY, tokens=tokens))):
            ids = [job.id for job in jobs]
            threading.Thread(target=self._kill, args=(ids,), name="end-jobs", daemon=True).start()

    def loan_over(self, loan: Loan, why: str) -> None:
        """End what a token runs on the connections that it used by a loan; its jobs there run on."""
        self.end_borrowed(loan, why)
        self._record(LOAN_ENDED, loan, {"why": why, "connections": sorted(loan.used_on)})

    def end_borrowed(self, loan: Loan, why: str) -> None:
        """End streams, terminals and tunnels of a token on the connections that it used by a loan."""
        used_on = set(loan.used_on)
        self._streams.end([loan.token], loan_over(loan, why), on=used_on)
        self._terminals.end([loan.token], on=used_on)
        self._tunnels.end([loan.token], through=used_on)

    def loan_used(self, loan: Loan, connection: str, is_first: bool) -> None:
        """Record a use of a loan, in the entry of the request that uses it if there is one."""
        # Outside of requests jobs are looked at several times a second, which would fill the log.
        if not note_loan(loan, connection) and is_first:
            self._record(LOAN_USED, loan, {"connection": connection})

    def _record(self, event: str, loan: Loan, more: Mapping[str, Any]) -> None:
        facts = {"event": event, "session": loan.session, "token": loan.token, "tokenName": loan.name}
        self._audit.record(facts, {}, {"user": loan.principal.name, **more})

    def _kill(self, ids: Collection[str]) -> None:
        for id in ids:
            try:
                # With the daemon's own access only: revoking a token must not open secrets for it.
                self._jobs.kill(id, Access(), "TERM", GRACE_SECONDS)
            except JobFinished:
                continue
            except ConnmgrError as error:
                logger.warning("Job %s of a revoked token runs on: %s", id, error.message)
