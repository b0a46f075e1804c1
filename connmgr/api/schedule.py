"""``/schedule``: runs that begin by themselves."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace as changed
from datetime import datetime
from typing import Any

import flask

from connmgr import errors
from connmgr.api.auth import Caller
from connmgr.api.context import STORE, caller, detail, sees_work
from connmgr.api.endpoint import Group
from connmgr.api.multiplex import Entrance
from connmgr.api.services import Services, services
from connmgr.audit.entry import CUT_OUT
from connmgr.contract.message import ABSENT, fields_of, given_json, message_of, time_from_json, time_to_json
from connmgr.contract.run import RunStartRequest
from connmgr.contract.schedule import (
    NO_ZONE,
    UTC,
    Notify,
    ScheduleAddRequest,
    ScheduleAddResponse,
    ScheduleInfo,
    ScheduleNextRequest,
    ScheduleNextResponse,
    SchedulePauseRequest,
    ScheduleQueryRequest,
    ScheduleQueryResponse,
    ScheduleRequest,
    ScheduleTriggerResponse,
    ScheduleUpdateRequest,
    ScheduleUpdateResponse,
)
from connmgr.durations import boot_time
from connmgr.errors import (
    ConnmgrError,
    IntegrityError,
    InvalidRequest,
    PolicyDenied,
    ScheduleEnded,
    ScopeDenied,
    UnknownCommand,
    UnknownRun,
    UnknownSchedule,
)
from connmgr.links.chain import locked_connections
from connmgr.rights.tokens import access_of
from connmgr.runs.plan import warning_of
from connmgr.schedules.schedules import MISSED_SECONDS, Store, timing_of, turn_after
from connmgr.schedules.times import Timing, zone_of
from connmgr.secrets.loans import Loans
from connmgr.secrets.principals import Access
from connmgr.vault.schedules import StoredSchedule, Turn

group = Group(
    "schedule",
    "Runs that begin by themselves, at times of a calendar or every so often. A schedule is kept in the vault: it "
    "needs no client, and of several daemons on PostgreSQL one fires it.",
)

ID = "5a0d6c1e-7f3b-4c57-8f0c-9b6f2d3c1e42"
RUN_ID = "0d5f0b0e-4a44-4b57-9f0c-2a6f2d3c1e11"
RUN = {"connectionFilter": "web*", "where": "env=prod", "command": "apt-get -y upgrade", "waves": [1, "100%"]}
FINDING = (errors.UnknownSchedule, errors.IntegrityError)
STARTING = (errors.UnknownConnection, errors.UnknownCommand, errors.RunLimit, errors.IntegrityError)


@group.endpoint(
    "/add",
    has_content=True,
    about=("name",),
    raises=[*STARTING, errors.ScheduleExists],
    waits=True,
    example={
        "name": "nightly upgrade",
        "cron": "30 2 * * *",
        "timezone": "Europe/Vienna",
        "jitter": 600,
        "catchUp": "latest",
        "run": RUN,
    },
    answer={"schedule": ID, "next": "2026-01-31T01:30:00.000000Z"},
)
def add(request: ScheduleAddRequest) -> ScheduleAddResponse:
    """Add a schedule. Each of its times is a run of its own, with the rights that its author has then.

    The author is the sender: a token, or the owner. What the run would select is looked up now, so that a mistake is
    told; each run looks it up anew. A schedule whose token was revoked or has expired is paused, and says so.
    """
    spec: dict[str, Any] = {
        **_author(),
        "cron": request.cron,
        "every": request.every,
        "timezone": request.timezone,
        "anchor": time_to_json(services().schedules.clock()),
        "jitter": request.jitter,
        "overlap": request.overlap,
        "catchUp": request.catch_up,
        "until": None if request.until is None else time_to_json(request.until),
        "run": _run_of(request.run),
        "notify": None if request.notify is None else _notify_of(request.notify),
    }
    new = StoredSchedule(id=str(uuid.uuid4()), name=request.name, spec=spec, due=None, next_at=None)
    zone_of(request.timezone)
    timing_of(new).check()
    new = _with_next_time(new, time_from_json(spec["anchor"]))
    told = _try_out(request.run, spec["run"])
    services().vault.schedules.add(new, sees_work)
    services().schedules.changed(new, "added")
    detail(schedule=new.id)
    assert new.due is not None, "its next time was just found"  # noqa: S101
    return ScheduleAddResponse(schedule=new.id, next=new.due, **told)


@group.endpoint(
    "/update",
    has_content=True,
    about=("schedule", "name"),
    raises=[*FINDING, *STARTING, errors.ScheduleExists],
    waits=True,
    example={"schedule": "nightly upgrade", "cron": "0 3 * * 1-5"},
    answer={
        "schedule": ID,
        "name": "nightly upgrade",
        "cron": "0 3 * * 1-5",
        "every": None,
        "timezone": "Europe/Vienna",
        "jitter": 600,
        "overlap": "skip",
        "catchUp": "latest",
        "until": None,
        "next": "2026-02-02T02:00:00.000000Z",
        "paused": None,
        "overdue": False,
        "lastRun": RUN_ID,
        "lastState": "done",
        "lastError": None,
        "skipped": 0,
        "token": None,
        "tokenName": None,
        "run": RUN,
        "notify": None,
    },
)
def update(request: ScheduleUpdateRequest) -> ScheduleUpdateResponse:
    """Change a schedule, of which only the given fields change. New times count from now.

    Whoever changes what runs (`run`) becomes its author: its runs have the rights of the sender from then on. Other
    changes leave the author, so that nobody lends rights to a command that somebody else has chosen.
    """
    daemon, plain = services(), {"timezone": request.timezone, "jitter": request.jitter, "overlap": request.overlap}
    plain["catchUp"] = request.catch_up
    changes: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    at = daemon.schedules.clock()
    if request.cron is not None or request.every is not None:
        changes |= {"cron": request.cron, "every": request.every, "anchor": time_to_json(at)}
    if request.until is not ABSENT:
        changes["until"] = None if request.until is None else time_to_json(request.until)  # type: ignore[arg-type]
    if request.notify is not ABSENT:
        changes["notify"] = _notify_of(request.notify)  # type: ignore[arg-type]

    def updated(now: StoredSchedule) -> StoredSchedule:
        # Of the schedule as it is now: what another request, or a firing, has just changed stays.
        if caller().grant is not None and now.spec["notify"] is not None:
            raise ScopeDenied("The owner is notified of this schedule: only the owner can change it.")
        after = changed(now, spec={**now.spec, **changes}, name=request.name or now.name)
        if request.timezone not in (None, UTC) and after.spec["every"] is not None:
            raise InvalidRequest(f"timezone: {NO_ZONE}")
        if request.cron is not None:
            timing_of(after).check()
        if any(after.spec[name] != now.spec[name] for name in ("cron", "every", "timezone", "jitter", "until")):
            after = _with_next_time(after, at)
        return after

    schedule = _visible_schedule(request.schedule)
    # Refused before the new run is tried out, which takes longer; decided again when it is stored.
    updated(schedule)
    told: dict[str, Any] = {"locked": None, "warning": None}
    if request.run is not None:
        changes |= {"run": _run_of(request.run), **_author()}
        told = _try_out(request.run, changes["run"])
    stored = _change(schedule, updated)
    daemon.schedules.changed(stored, "changed")
    return ScheduleUpdateResponse(**vars(_info(stored)), **told)


@group.endpoint(
    "/query",
    has_large_answer=True,
    reads=True,
    audited=False,
    about=("name",),
    raises=[errors.IntegrityError],
    example={},
    answer={"schedules": []},
)
def query(request: ScheduleQueryRequest) -> ScheduleQueryResponse:
    """List schedules by their names. A token sees those that it, or a token below it, has added."""
    visible = [schedule for schedule in services().vault.schedules.all() if sees_work(schedule)]
    named = [schedule for schedule in visible if request.name in (None, schedule.name)]
    return ScheduleQueryResponse(schedules=[_info(schedule) for schedule in named])


@group.endpoint("/remove", about=("schedule",), raises=FINDING, example={"schedule": "nightly upgrade"})
def remove(request: ScheduleRequest) -> None:
    """Remove a schedule. Its runs stay, and one that is under way goes on."""
    schedule = _visible_schedule(request.schedule)
    services().vault.schedules.remove(schedule.id, sees_work)
    services().schedules.changed(schedule, "removed")


@group.endpoint(
    "/pause",
    about=("schedule", "reason"),
    raises=FINDING,
    example={"schedule": "nightly upgrade", "reason": "The freeze before the release."},
)
def pause(request: SchedulePauseRequest) -> None:
    """Let a schedule not fire until `/schedule/resume`. A run that is under way goes on."""
    reason = request.reason or f"It was paused by {caller().name}."
    schedule = _change(_visible_schedule(request.schedule), lambda now: changed(now, paused=reason))
    services().schedules.changed(schedule, "paused")


@group.endpoint(
    "/resume",
    about=("schedule",),
    raises=[*FINDING, errors.ScheduleEnded],
    example={"schedule": "nightly upgrade"},
)
def resume(request: ScheduleRequest) -> None:
    """Let a paused schedule fire again, from its next time on; those that have passed meanwhile were not missed."""
    at = services().schedules.clock()

    def resumed(now: StoredSchedule) -> StoredSchedule:
        if now.paused is None:
            return now
        turn = turn_after(now, at)
        if turn.due is None:
            raise ScheduleEnded(f"The schedule {now.name!r} has ended; give it new times by /schedule/update.")
        return changed(now, paused=None, waits=False, due=turn.due, next_at=turn.next_at)

    schedule = _change(_visible_schedule(request.schedule), resumed)
    services().schedules.changed(schedule, "resumed")


@group.endpoint(
    "/trigger",
    about=("schedule",),
    raises=[*FINDING, *STARTING],
    waits=True,
    example={"schedule": "nightly upgrade"},
    answer={"run": RUN_ID},
)
def trigger(request: ScheduleRequest) -> ScheduleTriggerResponse:
    """Start a schedule's run now, with its author's rights, beside its times; also if it is paused."""
    run = services().schedules.trigger(_visible_schedule(request.schedule))
    detail(run=run)
    return ScheduleTriggerResponse(run=run)


@group.endpoint(
    "/next",
    reads=True,
    audited=False,
    about=("schedule",),
    raises=FINDING,
    example={"cron": "30 2 * * *", "timezone": "Europe/Vienna", "count": 2},
    answer={"times": ["2026-01-31T01:30:00.000000Z", "2026-02-01T01:30:00.000000Z"]},
)
def next(request: ScheduleNextRequest) -> ScheduleNextResponse:
    """Tell the next times of a schedule, or of times that are yet to be one, without jitter."""
    at = services().schedules.clock()
    moment: datetime | None = request.after or at
    times: list[str] = []
    schedule = None if request.schedule is None else _visible_schedule(request.schedule)
    timing = Timing(request.cron, request.every, request.timezone, at) if schedule is None else timing_of(schedule)
    if schedule is None:
        zone_of(request.timezone)
        timing.check()
    while moment is not None and len(times) < request.count:
        moment = timing.after(moment) if schedule is None else turn_after(schedule, moment).due
        times += [] if moment is None else [time_to_json(moment)]
    return ScheduleNextResponse(times=times)


def start_as(
    app: flask.Flask, daemon: Services, schedule: StoredSchedule, fields: Mapping[str, Any], store: Store | None
) -> str:
    """Request a run in the name of a schedule's author, and return its id; ``store`` stores it.

    :raises connmgr.errors.ConnmgrError: the errors of ``/run/start``; also that the author's token is gone.
    """
    live = None if schedule.token is None else daemon.grants.live(schedule.token)
    if live is not None and (why := live.grant.invalid(daemon.vault.runs.time())) is not None:
        raise why
    # Nothing is lent to it: a loan is for what a session of the token asks for.
    sender = Caller(f"schedule {schedule.name}", access_of(live, Loans()), boot_time(), live=live)
    more = {} if store is None else {STORE: store}
    return str(Entrance(app).post(sender, "/run/start", fields, more)["run"])


def _author() -> dict[str, Any]:
    """Return the members of a schedule's spec that say in whose name it runs."""
    grant = caller().grant
    if grant is None:
        return {"token": None, "tokenName": None, "lineage": []}
    return {"token": grant.id, "tokenName": grant.name, "lineage": grant.lineage_ids}


def _run_of(request: RunStartRequest) -> dict[str, Any]:
    """Return what a schedule keeps of the request for its runs.

    :raises InvalidRequest: it has a field that a schedule decides, or a password.
    """
    for name, value in (("key", request.key), ("dryRun", request.dry_run or None), ("wait", request.wait or None)):
        if value is not None:
            raise InvalidRequest(f"run.{name}: Not for the runs of a schedule.")
    if request.elevate is not None and request.elevate.password is not None:
        raise InvalidRequest("run.elevate.password: A schedule cannot keep a password; store it with /secret/sudo.")
    return given_json(request)


def _notify_of(notify: Notify | None) -> dict[str, Any] | None:
    if caller().grant is not None:
        raise ScopeDenied("notify: A token cannot have the daemon's machine run a command or call a server.")
    if notify is None:
        return None
    if notify.command is not None and shutil.which(notify.command[0]) is None:
        # It would be missed only when there is something to tell, and then nobody would be told.
        raise InvalidRequest(f"notify.command: The daemon's machine has no program {notify.command[0]!r}.")
    return given_json(notify)


def _try_out(request: RunStartRequest, run: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse a run that could not be started now, or not without a person; return what is to be told about it.

    ``run`` is what the schedule keeps of the ``request``.
    """
    entrance = Entrance(flask.current_app._get_current_object())  # type: ignore[attr-defined]
    if caller().grant is not None:
        decided = entrance.post(caller(), "/token/check", {"path": "/run/start", "request": run})
        if decided["effect"] == "ask":
            raise PolicyDenied(
                "A rule of the token asks for an approval of this run, and nobody can give one when a schedule fires: "
                "start it by /run/start, or let the owner add the schedule.",
                rule=decided["rule"],
            )
    try:
        tried = entrance.post(caller(), "/run/start", {**run, "dryRun": True})
    except ConnmgrError as error:
        if error.code == InvalidRequest.code:
            # It names the fields of the run, which is a part of the request that its sender knows.
            named = re.match(r"(\w+)[.:]", error.message)
            is_field = named is not None and named[1] in {field.json for field in fields_of(RunStartRequest)}
            error.message = f"run.{error.message}" if is_field else f"run: {error.message}"
        raise
    return {
        "locked": _locked_to_schedules(tried["connections"]),
        "warning": warning_of(request, tried["waves"], within="run."),
    }


def _locked_to_schedules(connections: Collection[str]) -> list[str] | None:
    """Return those of ``connections`` whose secrets no run of a schedule opens; None if there are none."""
    daemon, nobody = services(), Access()
    if not daemon.vault.principals.status(nobody).has_users:
        return None
    return sorted(locked_connections(daemon.vault, daemon.registry, connections, nobody)) or None


def _with_next_time(schedule: StoredSchedule, at: datetime) -> StoredSchedule:
    """Return a schedule with its next time after ``at``.

    :raises InvalidRequest: it has none, or no such time zone.
    """
    zone_of(schedule.spec["timezone"])
    every, jitter = schedule.spec["every"], schedule.spec["jitter"]
    if every is not None and jitter > every:
        raise InvalidRequest(f"jitter: {jitter:g} s are more than the {every:g} s between its times.")
    timing_of(schedule).after(at)
    turn: Turn = turn_after(schedule, at)
    if turn.due is None:
        raise InvalidRequest("until: The schedule would never fire; all its times are later.")
    return changed(schedule, due=turn.due, next_at=turn.next_at, waits=False)


def _visible_schedule(name: str) -> StoredSchedule:
    """Return the schedule of this uuid or name that the caller sees; of several of one name, the caller's own.

    :raises UnknownSchedule: there is none.
    :raises InvalidRequest: several others have this name.
    """
    found = [schedule for schedule in services().vault.schedules.called(name) if sees_work(schedule)]
    if not found:
        raise UnknownSchedule(name)
    if len(found) == 1 or found[0].id == name.lower():
        return found[0]
    own = [schedule for schedule in found if schedule.token == caller().token]
    if len(own) != 1:
        ids = ", ".join(schedule.id for schedule in found)
        raise InvalidRequest(f"schedule: {len(found)} schedules are called {name!r}; name one by its uuid: {ids}.")
    return own[0]


def _change(schedule: StoredSchedule, change: Callable[[StoredSchedule], StoredSchedule]) -> StoredSchedule:
    """Replace a schedule by the result of ``change``, and return it.

    :raises UnknownSchedule: it is gone, or somebody else's by now.
    """

    def permitted(now: StoredSchedule) -> StoredSchedule:
        if not sees_work(now):
            raise UnknownSchedule(schedule.name)
        return change(now)

    return services().vault.schedules.change(schedule.id, permitted, sees_work)


def _info(schedule: StoredSchedule) -> ScheduleInfo:
    spec, state = schedule.spec, None
    if schedule.last_run is not None:
        try:
            state = services().vault.runs.kept(schedule.last_run).state
        except UnknownRun:
            state = None
    late = None if schedule.next_at is None else (services().schedules.clock() - schedule.next_at).total_seconds()
    notify = spec["notify"]
    if notify is not None and notify.get("webhook"):
        notify = {**notify, "webhook": {"url": notify["webhook"]["url"]}}
    return message_of(
        ScheduleInfo,
        schedule,
        schedule=schedule.id,
        cron=spec["cron"],
        every=spec["every"],
        timezone=spec["timezone"],
        jitter=spec["jitter"],
        overlap=spec["overlap"],
        catch_up=spec["catchUp"],
        until=None if spec["until"] is None else time_from_json(spec["until"]),
        next=None if schedule.paused is not None else schedule.due,
        overdue=schedule.paused is None and late is not None and late >= MISSED_SECONDS,
        last_state=state,
        # Older versions did not store it.
        token_name=spec.get("tokenName"),
        run=_shown_run(spec["run"]),
        notify=None if caller().grant is not None else notify,
    )


def _shown_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a schedule runs, without what may be secret."""
    shown = {name: value for name, value in run.items() if name not in ("stdin", "env", "sendEnv")}
    if (saved := shown.get("saved")) is not None:
        arguments = saved.get("arguments", {})
        try:
            arguments = services().commands.get(saved["name"]).shown(arguments)
        except (UnknownCommand, IntegrityError):
            # Which of them are secret is not known any more.
            arguments = dict.fromkeys(arguments, CUT_OUT)
        shown["saved"] = {**saved, "arguments": arguments}
    return shown
