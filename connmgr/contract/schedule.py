"""``/schedule``: runs that begin by themselves, at times of a calendar or every so often."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from connmgr.contract.common import MAX_WORDS, NO_CONTROLS
from connmgr.contract.message import (
    ABSENT,
    AWARE,
    SECRET,
    Absent,
    Length,
    Message,
    OneOf,
    Range,
    SchemaMembers,
    Wrong,
)
from connmgr.contract.run import UNREACHABLE, RunStartRequest

SKIP: Final = "skip"
QUEUE: Final = "queue"
NONE: Final = "none"
LATEST: Final = "latest"
EVERY_ONE: Final = "all"

MISSED: Final = "missed"
SKIPPED: Final = "skipped"
REFUSED: Final = "refused"
FAILED: Final = "failed"
DONE: Final = "done"
TELLS = (MISSED, SKIPPED, REFUSED, FAILED, UNREACHABLE, DONE)
"""What can be told of a schedule."""

UTC = "UTC"
LEAST_SECONDS = 1
MOST_SECONDS = 366 * 86400
MOST_NEXT = 1000
LONGEST_NAME = 200
LONGEST_SECRET = 1024

NO_ZONE = "It would have no effect beside every, which counts seconds: give cron, or leave it out."
CRON = "minute, hour, day, month and weekday, with seconds before them if there are six; in `timezone`"


class Webhook(Message):
    url: Annotated[str, Length(1, 2000), "Where to POST the notice, by http or https."]
    secret: Annotated[
        str,
        SECRET,
        Length(16, LONGEST_SECRET),
        SchemaMembers({"format": "password"}),
        "Signs the notice: `X-Connmgr-Signature` is `sha256=` and the HMAC-SHA256, in hexadecimal, of the value of "
        "`X-Connmgr-Timestamp`, a dot and the body.",
    ]

    def check(self) -> None:
        super().check()
        try:
            parts = urlsplit(self.url)
            # Reading the port checks it.
            is_served = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_served = False
        if not is_served or parts.username is not None:
            raise Wrong("Not the address of an http or https server, without a user.", "url")
        # What a line of HTTP cannot have would fail when there is something to tell, or be left out without a word.
        if re.search(r"[\x00-\x20\x7f]", self.url) or not (parts.path + parts.query).isascii():
            raise Wrong("Has a blank, or another character that is written as %XX in an address.", "url")


class Notify(Message):
    """Who is told how a schedule goes, besides the stream of events and plugins."""

    on: Annotated[
        Sequence[Annotated[str, OneOf(TELLS)]],
        Length(1),
        "What is told: `missed` (no daemon was there at the time), `skipped` (the run before was still under way), "
        "`refused` (the run could not be started), `failed` (it failed or was stopped), `unreachable` (it is done, but "
        "some machines could not be reached), `done` (all others that are done).",
    ] = (MISSED, SKIPPED, REFUSED, FAILED, UNREACHABLE)
    command: Annotated[
        list[str] | None,
        Length(1, MAX_WORDS),
        "A program and its arguments, run on the daemon's machine as its user, with the notice as JSON on standard "
        "input, for at most 30 s.",
    ] = None
    webhook: Annotated[Webhook | None, "A server that gets the notice as JSON, within 10 s."] = None

    def check(self) -> None:
        super().check()
        if self.command is None and self.webhook is None:
            raise Wrong("Nobody would be told: give a command, a webhook or both.", "command")


class Times(Message):
    """When a schedule fires."""

    cron: Annotated[str | None, Length(1, 500), f"When it fires: {CRON}. This or `every`."] = None
    every: Annotated[
        float | None, Range(LEAST_SECONDS, MOST_SECONDS), "Seconds between its times, from when it was added."
    ] = None
    timezone: Annotated[str, Length(1, 100), "The time zone of `cron`, such as `Europe/Vienna`."] = UTC

    def check(self) -> None:
        super().check()
        if (self.cron is None) == (self.every is None):
            raise Wrong("Give either cron or every.", "cron")
        if self.every is not None and self.timezone != UTC:
            raise Wrong(NO_ZONE, "timezone")


class ScheduleAddRequest(Times):
    name: Annotated[str, Length(1, LONGEST_NAME), NO_CONTROLS, "Its name, which no other schedule has."]
    jitter: Annotated[float, Range(0, 86400), "Up to so many seconds, at random, are added to each time."] = 0
    overlap: Annotated[
        str,
        OneOf((SKIP, QUEUE)),
        "If the run before is still under way: `skip` leaves the time out, `queue` lets one time wait for its end.",
    ] = SKIP
    catch_up: Annotated[
        str,
        OneOf((NONE, LATEST, EVERY_ONE)),
        "For times at which no daemon was there for a minute or more: `none` leaves them out, `latest` fires once for "
        "all of them, `all` fires for each, one run after the other.",
    ] = NONE
    until: Annotated[datetime | None, AWARE, "It does not fire after this time."] = None
    run: Annotated[RunStartRequest, "What runs: the fields of `/run/start`, but `key`, `dryRun` and `wait`."]
    notify: Annotated[Notify | None, "Who is told how it goes. A token cannot give it."] = None


class ScheduleRequest(Message):
    schedule: Annotated[str, Length(1, LONGEST_NAME), "The schedule's name, or its uuid."]


class ScheduleUpdateRequest(ScheduleRequest):
    name: Annotated[str | None, Length(1, LONGEST_NAME), NO_CONTROLS, "The new name."] = None
    cron: Annotated[str | None, Length(1, 500), "New times, in place of `every` too."] = None
    every: Annotated[float | None, Range(LEAST_SECONDS, MOST_SECONDS), "New times, in place of `cron` too."] = None
    timezone: Annotated[str | None, Length(1, 100), "As in `/schedule/add`."] = None
    jitter: Annotated[float | None, Range(0, 86400), "As in `/schedule/add`."] = None
    overlap: Annotated[str | None, OneOf((SKIP, QUEUE)), "As in `/schedule/add`."] = None
    catch_up: Annotated[str | None, OneOf((NONE, LATEST, EVERY_ONE)), "As in `/schedule/add`."] = None
    until: Annotated[datetime | Absent | None, AWARE, "As in `/schedule/add`; null: no end."] = ABSENT
    run: Annotated[RunStartRequest | None, "What runs, in whole."] = None
    notify: Annotated[Notify | Absent | None, "As in `/schedule/add`; null: nobody is told."] = ABSENT

    def check(self) -> None:
        super().check()
        if self.cron is not None and self.every is not None:
            raise Wrong("Give either cron or every.", "cron")


class ScheduleAddResponse(Message):
    schedule: Annotated[str, SchemaMembers({"format": "uuid"}), "The schedule's uuid."]
    next: Annotated[datetime, "When it fires first."]
    locked: Annotated[
        list[str] | None,
        "Present if secrets of some connections are sealed to vault users alone: their ids. No run of a schedule opens "
        "such secrets; it would be `failed` there.",
    ] = None
    warning: Annotated[
        str | None,
        "Present if something of `run` has no effect, as in `/run/start`.",
    ] = None


class SchedulePauseRequest(ScheduleRequest):
    reason: Annotated[str | None, Length(1, 500), "Why, for those who look."] = None


class ScheduleTriggerResponse(Message):
    run: Annotated[str, SchemaMembers({"format": "uuid"}), "The run that was started."]


class ScheduleQueryRequest(Message):
    name: Annotated[str | None, Length(1, LONGEST_NAME), "Only the one of this name."] = None


class ScheduleInfo(Message):
    schedule: Annotated[str, SchemaMembers({"format": "uuid"}), "Its uuid."]
    name: Annotated[str, "Its name."]
    cron: Annotated[str | None, f"When it fires: {CRON}."]
    every: Annotated[float | None, "Seconds between its times."]
    timezone: Annotated[str, "The time zone of `cron`."]
    jitter: Annotated[float, "Seconds that are added at random, at most."]
    overlap: Annotated[str, "`skip` or `queue`."]
    catch_up: Annotated[str, "`none`, `latest` or `all`."]
    until: Annotated[datetime | None, "Its end."]
    next: Annotated[datetime | None, "When it fires next; null if it is paused, or has ended."]
    paused: Annotated[str | None, "Why it is paused; null if it is not."]
    overdue: Annotated[bool, "Whether its next time was a minute ago or more, and it has not fired."]
    last_run: Annotated[str | None, "The run that it started last."]
    last_state: Annotated[str | None, "The state of that run; null without one, or if it was removed."]
    last_error: Annotated[str | None, "Why its last time started no run; null if it did."]
    skipped: Annotated[
        int, "How many times were left out because of the run before; of one wait, at most 1,000 are counted."
    ]
    token: Annotated[str | None, "The id of the token that added it; null for the owner."]
    token_name: Annotated[str | None, "The name of that token; null for the owner, and if it is not known."]
    run: Annotated[Mapping[str, Any], "What runs, without secrets."]
    notify: Annotated[Mapping[str, Any] | None, "Who is told, without the secret."]


class ScheduleUpdateResponse(ScheduleInfo):
    """The schedule as it is now; with a new ``run`` also what ``/schedule/add`` tells of that."""

    locked: Annotated[list[str] | None, "With a new `run`: as in `/schedule/add`."] = None
    warning: Annotated[str | None, "With a new `run`: as in `/schedule/add`."] = None


class ScheduleQueryResponse(Message):
    schedules: Annotated[list[ScheduleInfo], "By their names."]


class ScheduleNextRequest(Message):
    schedule: Annotated[str | None, Length(1, LONGEST_NAME), "The schedule's name or uuid; or give the times."] = None
    cron: Annotated[str | None, Length(1, 500), f"In place of a schedule: {CRON}."] = None
    every: Annotated[float | None, Range(LEAST_SECONDS, MOST_SECONDS), "In its place: seconds, from now."] = None
    timezone: Annotated[str, Length(1, 100), "The time zone of `cron`."] = UTC
    after: Annotated[datetime | None, AWARE, "Times after this one; without it: from now on."] = None
    count: Annotated[int, Range(1, MOST_NEXT), "How many times."] = 5

    def check(self) -> None:
        super().check()
        if sum(value is not None for value in (self.schedule, self.cron, self.every)) != 1:
            raise Wrong("Give one of schedule, cron and every.", "schedule")
        if self.cron is None and self.timezone != UTC:
            raise Wrong("It would have no effect without cron: leave it out.", "timezone")


class ScheduleNextResponse(Message):
    times: Annotated[
        list[Annotated[str, SchemaMembers({"format": "date-time"})]],
        "The next times, in UTC and without jitter; fewer than asked for if the schedule ends.",
    ]
