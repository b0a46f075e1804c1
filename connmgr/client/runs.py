"""``client.runs``: one command on many connections, which outlives clients and daemons.

run = client.runs.start(connection_filter="web*", command="uptime", waves=[1, "100%"], stop_after="5%")
info = client.runs.wait(run.run, timeout=600)
for target in client.runs.targets(run.run, states=["failed"]):
    print(target.name, target.exit_code, target.stderr)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from connmgr.client.group import Group
from connmgr.contract.job import MAX_WAIT
from connmgr.contract.run import (
    ENDED,
    RETRIED,
    RunGroup,
    RunInfo,
    RunOutputRequest,
    RunOutputResponse,
    RunQueryRequest,
    RunQueryResponse,
    RunRemoveRequest,
    RunRequest,
    RunRetryRequest,
    RunStartRequest,
    RunStartResponse,
    RunStopRequest,
    RunTarget,
    RunTargetsRequest,
    RunTargetsResponse,
    RunWaitRequest,
)

__all__ = ["RunGroup", "RunInfo", "RunStartResponse", "RunTarget", "Runs"]

PAGE = 1000


class Runs(Group):
    """``/run``."""

    def start(self, **fields: Any) -> RunStartResponse:
        """Start a run; ``fields`` are those of :class:`RunStartRequest`. With a ``key`` it can be repeated safely."""
        return self._ask("/run/start", RunStartRequest(**fields), RunStartResponse)

    def info(self, run: str) -> RunInfo:
        """Describe a run."""
        return self._ask("/run/info", RunRequest(run=run), RunInfo)

    def wait(self, run: str, timeout: float | None = None) -> RunInfo:
        """Wait for the end of a run, at most ``timeout`` seconds, and describe the run; it may not have ended then."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            seconds = float(MAX_WAIT) if until is None else min(MAX_WAIT, max(0.0, until - time.monotonic()))
            info = self._ask("/run/wait", RunWaitRequest(run=run, wait=seconds), RunInfo)
            if info.state in ENDED or (until is not None and time.monotonic() >= until):
                return info

    def targets(self, run: str, states: Sequence[str] | None = None, *, output: int = 200) -> Iterator[RunTarget]:
        """Yield the targets of a run in their order, each with ``output`` characters of the end of its output."""
        wanted, offset = None if states is None else list(states), 0
        while True:
            page = RunTargetsRequest(run=run, states=wanted, offset=offset, limit=PAGE, output=output)
            answer = self._ask("/run/targets", page, RunTargetsResponse)
            yield from answer.targets
            offset += len(answer.targets)
            if not answer.targets or offset >= answer.total:
                return

    def output(self, run: str, connection: str | None = None) -> list[RunGroup]:
        """Return the outputs of a run's targets, equal ones together, or that of one target."""
        groups: list[RunGroup] = []
        while True:
            wanted = RunOutputRequest(run=run, connection=connection, offset=len(groups))
            answer = self._ask("/run/output", wanted, RunOutputResponse)
            groups += answer.groups
            if not answer.groups or len(groups) >= answer.total:
                return groups

    def pause(self, run: str) -> None:
        """Begin no more targets until :meth:`resume`."""
        self._tell("/run/pause", RunRequest(run=run))

    def resume(self, run: str) -> None:
        """Go on, or let the next wave begin."""
        self._tell("/run/resume", RunRequest(run=run))

    def stop(self, run: str, *, kill: bool = False) -> None:
        """Begin no more targets; with ``kill``, end those that run."""
        self._tell("/run/stop", RunStopRequest(run=run, kill=kill))

    def retry(self, run: str, states: Sequence[str] = RETRIED) -> RunStartResponse:
        """Run the targets in one of ``states`` again, as a new run."""
        return self._ask("/run/retry", RunRetryRequest(run=run, states=list(states)), RunStartResponse)

    def query(self, states: Sequence[str] | None = None, name: str | None = None, limit: int = 100) -> list[RunInfo]:
        """Return the runs that match, newest first."""
        wanted = RunQueryRequest(states=None if states is None else list(states), name=name, limit=limit)
        return self._ask("/run/query", wanted, RunQueryResponse).runs

    def remove(self, run: str) -> None:
        """Remove a run that has ended."""
        self._tell("/run/remove", RunRemoveRequest(run=run))
