"""The schedules of a vault, fired by whichever of its daemons is there.

One thread, ``schedules``, sleeps until the next time of all schedules. It asks the daemon itself for each run, in the
name of the schedule's author, so that rights, rules and the audit log are those of any request; the request's run is
then stored in the transaction that sets the schedule's next time (:meth:`StoredSchedules.fire`). The thread begins with
the first schedule or run; on PostgreSQL, where other daemons may add one, with the daemon.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from connmgr.contract.event import SCHEDULE
from connmgr.contract.message import time_from_json, time_to_json
from connmgr.contract.run import UNDER_WAY, UNREACHABLE
from connmgr.contract.schedule import (
    DONE,
    EVERY_ONE,
    FAILED,
    LATEST,
    MISSED,
    NONE,
    QUEUE,
    REFUSED,
    SKIPPED,
)
from connmgr.errors import (
    AlreadyFired,
    ApprovalRequired,
    Busy,
    ConnmgrError,
    InvalidRequest,
    RunLimit,
    Stopping,
    UnknownRun,
    VaultUnavailable,
)
from connmgr.events import Publish, unheard
from connmgr.poller import Poller
from connmgr.schedules.notices import Notice, Notices
from connmgr.schedules.times import Timing
from connmgr.vault import Vault
from connmgr.vault.runs import NewRun, StoredRun, holder_of
from connmgr.vault.schedules import TOPIC, StoredSchedule, Turn

logger = logging.getLogger("connmgr.schedules")

MISSED_SECONDS = 60.0
"""A time that is so late was missed: no daemon was there."""

SHARED_SECONDS = 3.0
"""Interval of looking on PostgreSQL, where other daemons add schedules."""

LONGEST_SECONDS = 30.0
"""Longest sleep: a clock that is set meanwhile is noticed."""

RETRY_SECONDS = 2.0
"""Time until another attempt, when the database does not answer or the daemon is busy."""

TOKENS_SECONDS = 0.5
"""Time for the schedules of tokens, after which the owner's are looked at again."""

TRANSIENT = frozenset(error.code for error in (Busy, RunLimit, Stopping, VaultUnavailable)) | {"audit_unavailable"}
ENDS_AUTHOR = frozenset({"token_revoked", "token_expired"})
"""The errors after which the author has no rights any more."""

Store = Callable[[NewRun], tuple[str, bool]]
Start = Callable[[StoredSchedule, Mapping[str, Any], Store | None], str]
"""Requests a run with these fields in the name of a schedule's author, and returns its id; the run is stored by the
last argument, if there is one."""


class _Plan(NamedTuple):
    """What to do about a time: ``fires``, ``waits``, or neither; and the time that follows."""

    fires: bool
    following: Turn
    waits: bool = False
    missed: bool = False
    left_out: int = 0
    """How many times passed while this one waited for the run before."""


def timing_of(schedule: StoredSchedule) -> Timing:
    """Return when a schedule fires."""
    spec = schedule.spec
    return Timing(spec["cron"], spec["every"], spec["timezone"], time_from_json(spec["anchor"]))


def turn_after(schedule: StoredSchedule, moment: datetime) -> Turn:
    """Return the next time of a schedule after ``moment``; none if it has ended."""
    try:
        due = timing_of(schedule).after(moment)
    except InvalidRequest:
        return Turn(None, None)
    until = schedule.spec["until"]
    if until is not None and due > time_from_json(until):
        return Turn(None, None)
    # Spread over machines, not guessed by an attacker.
    return Turn(due, due + timedelta(seconds=random.uniform(0, schedule.spec["jitter"])))  # noqa: S311


class Schedules:
    """Fires schedules. Safe to use from several threads.

    ``start`` requests a run; ``clock`` returns the time, by default that of the vault.
    """

    def __init__(
        self,
        vault: Vault,
        notices: Notices,
        publish: Publish = unheard,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self._vault, self._notices, self._publish = vault, notices, publish
        self.clock = clock or vault.runs.time
        self.start: Start = _not_ready
        self._poller = Poller("schedules", self.look, RETRY_SECONDS, logger)
        vault.announcements.on(TOPIC, self.poke)

    def begin(self) -> None:
        """Go on with the vault's schedules, as the daemon starts."""
        if self._vault.database.is_shared or self._vault.schedules.earliest() is not None:
            self.poke()

    def poke(self) -> None:
        """Look now what is to be done, in a thread that then lasts as long as the daemon."""
        self._poller.poke()

    def close(self, timeout: float) -> None:
        """Fire nothing more."""
        self._poller.close(timeout)

    def trigger(self, schedule: StoredSchedule) -> str:
        """Start a schedule's run now, beside its times, and return the run."""
        run = self.start(schedule, _request(schedule), None)
        self._vault.schedules.note_run(schedule.id, run)
        self._tell(schedule, "fired", run=run)
        return run

    def changed(self, schedule: StoredSchedule, change: str) -> None:
        """Tell of a change that a request has made, and look whether its time has come."""
        self._tell(schedule, change)
        self.poke()

    def look(self) -> float | None:
        """Fire what is due, tell what has ended, and return the seconds until the next look; None: at the next poke."""
        shared = self._vault.database.is_shared
        earliest, untold = self._vault.schedules.glance()
        if untold:
            for id in self._vault.runs.take_ended():
                self._tell_end(id)
        if earliest is None:
            return SHARED_SECONDS if shared else None
        at = self.clock()
        retry = earliest <= at and not self._fire(at)
        if self._poller.closing.is_set():
            return None
        earliest = self._vault.schedules.earliest(at if retry else None)
        if earliest is None:
            return RETRY_SECONDS if retry else SHARED_SECONDS if shared else None
        longest = RETRY_SECONDS if retry else SHARED_SECONDS if shared else LONGEST_SECONDS
        return max(0.0, min((earliest - self.clock()).total_seconds(), longest))

    def _fire(self, at: datetime) -> bool:
        """Deal with all times that have come; return False if some have to be tried again."""
        until, done = time.monotonic() + TOKENS_SECONDS, True
        for schedule in _in_turns(self._vault.schedules.due(at)):
            if self._poller.closing.is_set() or (schedule.token is not None and time.monotonic() > until):
                # By now others may be due, which go first.
                break
            try:
                done &= self._deal_with(schedule)
            except VaultUnavailable:
                raise
            except ConnmgrError as error:
                logger.warning("The schedule %s could not fire: %s", schedule.name, error.message)
                done = False
        return done

    def _deal_with(self, schedule: StoredSchedule) -> bool:
        """Deal with a time that has come; return False if it has to be tried again."""
        at, stored = self.clock(), self._vault.schedules
        plan = self._plan_for(schedule, at)
        if plan.waits:
            # A poke comes with the end of the run if this daemon works on it, else a later look finds it.
            if not schedule.waits:
                stored.wait(schedule)
            return False
        if plan.missed:
            self._tell(schedule, MISSED, at=schedule.due)
        if not plan.fires:
            if stored.leave_out(schedule, plan.following, skipped=0 if plan.missed else 1) and not plan.missed:
                self._tell(schedule, SKIPPED, run=schedule.last_run, at=schedule.due)
            return True
        try:
            key = f"schedule:{schedule.id}:{time_to_json(schedule.due or at)}"
            store = partial(stored.fire, schedule, plan.following, skipped=plan.left_out)
            run = self.start(schedule, {**_request(schedule), "key": key}, store)
        except ConnmgrError as error:
            # Another daemon was faster, or the schedule was changed meanwhile.
            return error.code == AlreadyFired.code or self._note_refusal(schedule, plan.following, error)
        self._tell(schedule, "fired", run=run, at=schedule.due)
        if plan.left_out:
            self._tell(schedule, SKIPPED, run=schedule.last_run, at=turn_after(schedule, schedule.due or at).due)
        return True

    def _plan_for(self, schedule: StoredSchedule, at: datetime) -> _Plan:
        spec, due, next_at = schedule.spec, schedule.due or at, schedule.next_at or at
        is_missed = not schedule.waits and (at - next_at).total_seconds() >= MISSED_SECONDS
        if (restored := self._vault.schedules.restored()) is not None and due <= restored:
            # It may have fired after the backup was made.
            return _Plan(False, turn_after(schedule, at), missed=True)
        busy = self._is_busy(schedule)
        if spec["catchUp"] == EVERY_ONE:
            # No time is dropped: each waits for the run before.
            late = busy and (is_missed or schedule.waits or spec["overlap"] == QUEUE)
            if late:
                return _Plan(False, Turn(due, next_at), waits=True)
            return _Plan(not busy, turn_after(schedule, due))
        if is_missed:
            fires = spec["catchUp"] == LATEST and not busy
            return _Plan(fires, turn_after(schedule, at), missed=spec["catchUp"] == NONE or not fires)
        if busy and spec["overlap"] == QUEUE:
            return _Plan(False, Turn(due, next_at), waits=True)
        if not schedule.waits:
            return _Plan(not busy, turn_after(schedule, due))
        # The times that have passed during the wait are left out: one waits at most.
        until = schedule.spec["until"]
        last = at if until is None else min(at, time_from_json(until))
        return _Plan(not busy, turn_after(schedule, max(due, at)), left_out=timing_of(schedule).count(due, last))

    def _is_busy(self, schedule: StoredSchedule) -> bool:
        if schedule.last_run is None:
            return False
        try:
            return self._vault.runs.get(schedule.last_run).state in UNDER_WAY
        except UnknownRun:
            return False

    def _note_refusal(self, schedule: StoredSchedule, following: Turn, error: ConnmgrError) -> bool:
        """Note that a time has started no run; return False if it has to be tried again."""
        if error.code in TRANSIENT:
            logger.warning("The schedule %s waits: %s", schedule.name, error.message)
            return False
        if error.code == ApprovalRequired.code:
            # It did not ask when the schedule was added: the run has other connections since.
            error.message = "A rule of its token asks for an approval now, and nobody waits for it when it fires."
        if error.code in ENDS_AUTHOR:
            reason = f"Its token has no rights any more: {error.message}"
            if self._vault.schedules.pause(schedule, reason):
                self._tell(schedule, "paused", error=error)
                self._notify(schedule, REFUSED, error=error)
            return True
        if self._vault.schedules.leave_out(schedule, following, error=error.message):
            self._tell(schedule, REFUSED, error=error, at=schedule.due)
        return True

    def _tell_end(self, id: str) -> None:
        """Tell of the end of a run."""
        try:
            run = self._vault.runs.get(id)
            counts = self._vault.runs.counts(id)
        except UnknownRun:
            return
        schedule = self._vault.schedules.of_run(id)
        shown = _shown(run, counts, schedule)
        if schedule is None:
            self._notices.tell(Notice(shown, shown, of_token=run.token is not None))
        else:
            self._notify(schedule, _outcome(run, counts, schedule), run=shown)
            self.poke()

    def _tell(
        self,
        schedule: StoredSchedule,
        change: str,
        *,
        run: str | None = None,
        at: datetime | None = None,
        error: ConnmgrError | None = None,
    ) -> None:
        """Publish what happened to a schedule, and notify of what is to be told."""
        failure = {"code": error.code, "message": error.message} if error is not None else {}
        lineage = tuple(schedule.spec["lineage"])
        self._publish(
            SCHEDULE,
            change,
            id=schedule.id,
            facts=lineage,
            name=schedule.name,
            token=schedule.token,
            run=run,
            **failure,
        )
        if error is not None:
            logger.warning("The schedule %s started no run: %s", schedule.name, error.message)
        if change in (MISSED, SKIPPED, REFUSED):
            self._notify(schedule, change, error=error, at=at)

    def _notify(
        self,
        schedule: StoredSchedule,
        what: str,
        *,
        run: Mapping[str, Any] | None = None,
        error: ConnmgrError | None = None,
        at: datetime | None = None,
    ) -> None:
        notify = schedule.spec["notify"] or {}
        is_told = what in notify.get("on", ())
        if run is None and not is_told:
            return
        webhook = notify.get("webhook") or {}
        body: dict[str, Any] = {"event": what, "schedule": schedule.name, "at": time_to_json(at or self.clock())}
        if run is not None:
            body["run"] = run
        if error is not None:
            body["error"] = {"code": error.code, "message": error.message}
        self._notices.tell(
            Notice(
                body,
                run,
                notify.get("command") if is_told else None,
                webhook.get("url") if is_told else None,
                webhook.get("secret", ""),
                of_token=schedule.token is not None and not is_told,
            )
        )


def _in_turns(due: Iterable[StoredSchedule]) -> Iterator[StoredSchedule]:
    """Yield the owner's schedules, and then those of tokens, of each in its turn."""
    of: dict[str | None, deque[StoredSchedule]] = {None: deque()}
    for schedule in due:
        of.setdefault(holder_of(schedule.spec), deque()).append(schedule)
    yield from of.pop(None)
    while of:
        for holder, theirs in list(of.items()):
            yield theirs.popleft()
            if not theirs:
                del of[holder]


def _request(schedule: StoredSchedule) -> dict[str, Any]:
    """Return the fields of the request for a schedule's run; nobody waits for an approval of it."""
    return {"name": schedule.name, **schedule.spec["run"], "wait": 0}


def _shown(run: StoredRun, counts: Mapping[str, int], schedule: StoredSchedule | None) -> dict[str, Any]:
    times = {name: getattr(run, name) for name in ("submitted", "began", "ended")}
    return {
        "run": run.id,
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "targets": sum(counts.values()),
        "counts": dict(counts),
        "schedule": None if schedule is None else schedule.name,
        "token": run.token,
        **{name: None if at is None else time_to_json(at) for name, at in times.items()},
    }


def _outcome(run: StoredRun, counts: Mapping[str, int], schedule: StoredSchedule) -> str:
    """Return which of the words of ``notify.on`` describes a run that has ended."""
    if run.state != DONE:
        return FAILED
    tells = (schedule.spec["notify"] or {}).get("on", ())
    # Whoever asked for all that are done, before machines that are away were told apart, still gets these.
    return UNREACHABLE if counts[UNREACHABLE] and UNREACHABLE in tells else DONE


def _not_ready(_one: StoredSchedule, _request: Mapping[str, Any], _store: Store | None) -> str:
    raise Stopping("The daemon is not ready yet.")
