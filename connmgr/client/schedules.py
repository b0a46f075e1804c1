"""``client.schedules``: runs that begin by themselves.

client.schedules.add("nightly", cron="30 2 * * *", run={"where": "env=prod", "command": "backup"})
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from connmgr.client.group import Group
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
)

__all__ = ["ScheduleInfo", "Schedules"]


class Schedules(Group):
    """``/schedule``; a ``schedule`` is a name or a uuid."""

    def add(self, name: str, *, run: Mapping[str, Any], **times: Any) -> ScheduleAddResponse:
        """Add a schedule; ``run`` and ``times`` are as ``/schedule/add`` has them in JSON."""
        return from_json(ScheduleAddResponse, self._post("/schedule/add", name=name, run=dict(run), **times))

    def update(self, schedule: str, **fields: Any) -> ScheduleInfo:
        """Change the given fields, as ``/schedule/update`` has them in JSON."""
        return from_json(ScheduleInfo, self._post("/schedule/update", schedule=schedule, **fields))

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
