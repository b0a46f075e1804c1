"""Many machines at once: runs, schedules that start them, inventories that connections follow, and facts.

run = client.runs.start(connection_filter="web*", command="uptime", waves=[1, "100%"], stop_after="5%")
info = client.runs.wait(run.run, timeout=600)
for target in client.runs.targets(run.run, states=["failed"]):
    print(target.name, target.exit_code, target.stderr)
client.schedules.add("nightly", cron="30 2 * * *", run={"where": "env=prod", "command": "backup"})
client.inventories.add("aws", ansible="/srv/aws_ec2.yml", every=900)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from connmgr.client.group import Group, list_of
from connmgr.contract import fact as fact_messages
from connmgr.contract import run as run_messages
from connmgr.contract.inventory import (
    InventoryAddRequest,
    InventoryChanges,
    InventoryInfo,
    InventoryNameRequest,
    InventoryQueryRequest,
    InventoryQueryResponse,
    InventoryRenewRequest,
)
from connmgr.contract.job import MAX_WAIT
from connmgr.contract.message import from_json, time_from_json
from connmgr.contract.schedule import (
    ScheduleAddResponse,
    ScheduleInfo,
    ScheduleNextRequest,
    ScheduleNextResponse,
    SchedulePauseRequest,
    ScheduleQueryRequest,
    ScheduleQueryResponse,
    ScheduleRequest,
    ScheduleTriggerResponse,
    ScheduleUpdateResponse,
)

PAGE = 1000


class Runs(Group):
    """``/run``."""

    def start(self, **fields: Any) -> run_messages.RunStartResponse:
        """Start a run; ``fields`` are those of :class:`RunStartRequest`. With a ``key`` it can be repeated safely."""
        return self._ask("/run/start", run_messages.RunStartRequest(**fields), run_messages.RunStartResponse)

    def info(self, run: str) -> run_messages.RunInfo:
        """Describe a run."""
        return self._ask("/run/info", run_messages.RunRequest(run=run), run_messages.RunInfo)

    def wait(self, run: str, timeout: float | None = None) -> run_messages.RunInfo:
        """Wait for the end of a run, at most ``timeout`` seconds, and describe the run; it may not have ended then."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            # The daemon answers after MAX_WAIT seconds at the latest; the wait goes on with the next request.
            seconds = float(MAX_WAIT) if until is None else min(MAX_WAIT, max(0.0, until - time.monotonic()))
            info = self._ask("/run/wait", run_messages.RunWaitRequest(run=run, wait=seconds), run_messages.RunInfo)
            if info.state in run_messages.ENDED or (until is not None and time.monotonic() >= until):
                return info

    def targets(
        self, run: str, states: Sequence[str] | None = None, *, output: int = 200
    ) -> Iterator[run_messages.RunTarget]:
        """Yield the targets of a run in their order, each with ``output`` characters of the end of its output."""
        request = run_messages.RunTargetsRequest(run=run, states=list_of(states), limit=PAGE, output=output)
        return self._pages(
            "/run/targets", request, run_messages.RunTargetsResponse, lambda page: (page.targets, page.total)
        )

    def output(self, run: str, connection: str | None = None) -> list[run_messages.RunGroup]:
        """Return the outputs of a run's targets, equal ones together, or that of one target."""
        request = run_messages.RunOutputRequest(run=run, connection=connection)
        return list(
            self._pages("/run/output", request, run_messages.RunOutputResponse, lambda page: (page.groups, page.total))
        )

    def pause(self, run: str) -> None:
        """Begin no more targets until :meth:`resume`."""
        self._tell("/run/pause", run_messages.RunRequest(run=run))

    def resume(self, run: str) -> None:
        """Go on, or let the next wave begin."""
        self._tell("/run/resume", run_messages.RunRequest(run=run))

    def stop(self, run: str, *, kill: bool = False) -> None:
        """Begin no more targets; with ``kill``, end those that run."""
        self._tell("/run/stop", run_messages.RunStopRequest(run=run, kill=kill))

    def retry(self, run: str, states: Sequence[str] = run_messages.RETRIED) -> run_messages.RunStartResponse:
        """Run the targets in one of ``states`` again, as a new run."""
        return self._ask(
            "/run/retry", run_messages.RunRetryRequest(run=run, states=list(states)), run_messages.RunStartResponse
        )

    def query(
        self, states: Sequence[str] | None = None, name: str | None = None, limit: int = 100
    ) -> list[run_messages.RunInfo]:
        """Return the runs that match, newest first."""
        request = run_messages.RunQueryRequest(states=list_of(states), name=name, limit=limit)
        return self._ask("/run/query", request, run_messages.RunQueryResponse).runs

    def remove(self, run: str) -> None:
        """Remove a run that has ended."""
        self._tell("/run/remove", run_messages.RunRemoveRequest(run=run))


class Schedules(Group):
    """``/schedule``; a ``schedule`` is a name or a uuid."""

    def add(self, name: str, *, run: Mapping[str, Any], **times: Any) -> ScheduleAddResponse:
        """Add a schedule; ``run`` and ``times`` are as ``/schedule/add`` has them in JSON."""
        return from_json(ScheduleAddResponse, self._http.post("/schedule/add", name=name, run=dict(run), **times))

    def update(self, schedule: str, **fields: Any) -> ScheduleUpdateResponse:
        """Change the given fields, as ``/schedule/update`` has them in JSON."""
        return from_json(ScheduleUpdateResponse, self._http.post("/schedule/update", schedule=schedule, **fields))

    def query(self, name: str | None = None) -> list[ScheduleInfo]:
        """Return the schedules, by their names."""
        return self._ask("/schedule/query", ScheduleQueryRequest(name=name), ScheduleQueryResponse).schedules

    def remove(self, schedule: str) -> None:
        """Remove a schedule; its runs stay."""
        self._tell("/schedule/remove", ScheduleRequest(schedule=schedule))

    def pause(self, schedule: str, reason: str | None = None) -> None:
        """Let it not fire until :meth:`resume`."""
        self._tell("/schedule/pause", SchedulePauseRequest(schedule=schedule, reason=reason))

    def resume(self, schedule: str) -> None:
        """Let it fire again, from its next time on."""
        self._tell("/schedule/resume", ScheduleRequest(schedule=schedule))

    def trigger(self, schedule: str) -> str:
        """Start its run now, and return the run."""
        return self._ask("/schedule/trigger", ScheduleRequest(schedule=schedule), ScheduleTriggerResponse).run

    def next(
        self,
        schedule: str | None = None,
        *,
        cron: str | None = None,
        every: float | None = None,
        timezone: str = "UTC",
        count: int = 5,
    ) -> list[datetime]:
        """Return the next times of a schedule, or of times that are yet to be one."""
        request = ScheduleNextRequest(schedule=schedule, cron=cron, every=every, timezone=timezone, count=count)
        return [time_from_json(text) for text in self._ask("/schedule/next", request, ScheduleNextResponse).times]


class Inventories(Group):
    """``/inventory``."""

    def add(self, name: str, **fields: Any) -> InventoryChanges:
        """Add an inventory and renew it; ``fields`` are those of :class:`InventoryAddRequest`."""
        return self._ask("/inventory/add", InventoryAddRequest(name=name, **fields), InventoryChanges)

    def renew(self, name: str, *, dry_run: bool = False) -> InventoryChanges:
        """Renew an inventory, or show what that would change."""
        return self._ask("/inventory/renew", InventoryRenewRequest(name=name, dry_run=dry_run), InventoryChanges)

    def query(self, name: str | None = None) -> list[InventoryInfo]:
        """Return the inventories, by their names."""
        return self._ask("/inventory/query", InventoryQueryRequest(name=name), InventoryQueryResponse).inventories

    def remove(self, name: str) -> None:
        """Remove an inventory; its connections stay."""
        self._tell("/inventory/remove", InventoryNameRequest(name=name))


class Facts(Group):
    """``/fact``; what the methods ``gather`` and ``query`` choose is as in :meth:`Shells.broadcast`."""

    def gather(
        self,
        connections: Sequence[str] | None = None,
        *,
        connection: str | None = None,
        category: str | None = None,
        type: str | None = None,
        where: str | None = None,
        parts: Sequence[str] | None = None,
        parallel: int = fact_messages.PARALLEL,
        timeout: float = fact_messages.SECONDS,
    ) -> list[fact_messages.GatheredFacts]:
        """Ask the machines of connections about themselves, and return the outcome on each.

        ``parts`` are ``system``, ``package`` and the first words of plugins' facts; without them everything is
        gathered. Each machine may take ``timeout`` seconds.
        """
        request = fact_messages.FactGatherRequest(
            connections=list_of(connections),
            connection_filter=connection,
            category_filter=category,
            type_filter=type,
            where=where,
            parts=list_of(parts),
            parallel=parallel,
            timeout=timeout,
        )
        return self._ask("/fact/gather", request, fact_messages.FactGatherResponse).gathered

    def query(
        self,
        connections: Sequence[str] | None = None,
        *,
        connection: str | None = None,
        category: str | None = None,
        type: str | None = None,
        where: str | None = None,
        names: Sequence[str] | None = None,
    ) -> list[fact_messages.MachineFacts]:
        """Return the facts that were gathered about the machines of connections; no machine is asked.

        ``names`` are patterns for the names of facts; without them all but packages are returned.
        """
        request = fact_messages.FactQueryRequest(
            connections=list_of(connections),
            connection_filter=connection,
            category_filter=category,
            type_filter=type,
            where=where,
            names=list_of(names),
            limit=fact_messages.MAX_LISTED,
        )
        return list(
            self._pages(
                "/fact/query", request, fact_messages.FactQueryResponse, lambda page: (page.machines, page.total)
            )
        )
