"""The times of a schedule: by a cron expression in a time zone, or every so many seconds.

On the two days of a changed clock a cron expression with an hour of its own (``30 2 * * *``) fires once: a time that
the clock skips comes at the moment of the change, of one that comes twice the first counts. With any hour
(``*/15 * * * *``) it goes by the elapsed time: nothing in a skipped hour, both times in a repeated one.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Any

from connmgr.errors import InvalidRequest

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

MOST_YEARS = 9
"""A leap day comes again after eight years at the latest, around 2100; what does not, never does."""

MOST_COUNTED = 1000
"""Most times that are counted one by one, which takes some 0.1 ms each."""

_FIELD = re.compile(r"[0-9A-Za-z*,/?#-]+\Z", re.ASCII)
_RANDOM = re.compile(r"(?<![A-Za-z])[HhRr](?![A-Za-z])")
_FIELD_NAMES = ("a second", "a minute", "an hour", "a day of a month", "a month", "a weekday")
_FIELD_BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_VALUES = {name: number for names, first in ((_MONTHS, 1), (_WEEKDAYS, 0)) for number, name in enumerate(names, first)}
"""The numbers of names; both kinds are read in both fields, for croniter has refused the wrong ones."""

_PART = re.compile(r"(?:\*|([0-9]+|[a-z]{3})(?:-([0-9]+|[a-z]{3}))?)(?:/([0-9]+))?\Z")
"""A part of a field between commas, in lower case: its first and last value and its step. Others are ``l``, ``5#3``."""

_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_SECOND = timedelta(seconds=1)


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone of that name.

    :raises InvalidRequest: there is none.
    """
    # Loaded with the first schedule.
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        # As for europe/berlin, or Berlin.
        wanted = name.lower()
        meant = sorted(
            zone for zone in available_timezones() if wanted in (zone.lower(), zone.lower().rpartition("/")[2])
        )
        write = f"is {meant[0]} meant?" if len(meant) == 1 else "write Europe/Vienna, or UTC."
        raise InvalidRequest(f"timezone: There is no time zone {name!r}; {write}") from None


@dataclass(frozen=True)
class Timing:
    """When a schedule fires: by ``cron``, or ``every`` so many seconds after its ``anchor``."""

    cron: str | None
    every: float | None
    timezone: str
    anchor: datetime

    def check(self) -> None:
        """Raise :class:`InvalidRequest` unless it fires after its anchor, and at the times that its author must mean.

        What was stored earlier fires as it did, also where this would refuse it.
        """
        self.after(self.anchor)
        if self.cron is None:
            return
        for text, (low, high) in zip(self._fields, _FIELD_BOUNDS, strict=True):
            for part in text.lower().split(","):
                if (why := _mistaken(part, low, high)) is not None:
                    raise InvalidRequest(f"cron: {self.cron!r}: {why}")

    def after(self, moment: datetime) -> datetime:
        """Return the first time after ``moment``, in UTC.

        :raises InvalidRequest: there is none.
        """
        if self.every is not None:
            steps = math.floor((moment - self.anchor).total_seconds() / self.every) + 1
            next_time = self.anchor + timedelta(seconds=max(steps, 1) * self.every)
            # The division may have been rounded.
            return next_time if next_time > moment else next_time + timedelta(seconds=self.every)
        return self._elapsing(moment) if self._goes_by_elapsed_time else self._by_the_clock(moment)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many times there are after one moment and until another, :data:`MOST_COUNTED` at most."""
        count = 0
        if self.every is not None:
            begin, end = ((moment - self.anchor).total_seconds() / self.every for moment in (after, until))
            count = math.floor(end) - max(0, math.floor(begin))
        else:
            # A schedule has a next time wherever this one is asked.
            with suppress(InvalidRequest):
                while count < MOST_COUNTED and (after := self.after(after)) <= until:
                    count += 1
        return min(max(count, 0), MOST_COUNTED)

    @cached_property
    def _fields(self) -> list[str]:
        """The six fields of the expression, seconds first."""
        text = _NAMES.get((self.cron or "").strip().lower(), self.cron or "")
        fields = text.split()
        if len(fields) not in (5, 6) or not all(map(_FIELD.match, fields)) or any(map(_RANDOM.search, fields)):
            raise InvalidRequest(
                f"cron: {self.cron!r} does not have five fields (minute, hour, day, month, weekday) or six (seconds "
                "first), such as '30 2 * * *'."
            )
        return fields if len(fields) == 6 else ["0", *fields]

    @property
    def _goes_by_elapsed_time(self) -> bool:
        return self._fields[2].startswith("*")

    @cached_property
    def _zone(self) -> tzinfo:
        return zone_of(self.timezone)

    def _next_on_the_wall(self, wall: datetime) -> datetime:
        """Return the next time of the expression after ``wall``, both without a zone."""
        # Imported here, for it takes as long as a command of the command line.
        from croniter import CroniterError, croniter

        expression = " ".join(self._fields)
        try:
            iterator: Any = croniter(
                expression, wall, second_at_beginning=True, max_years_between_matches=MOST_YEARS, day_or=True
            )
            next_time: datetime = iterator.get_next(datetime)
        except (CroniterError, ValueError, KeyError, IndexError, OverflowError) as error:
            if type(error).__name__ == "CroniterBadDateError":
                raise InvalidRequest(f"cron: {self.cron!r}: it never fires.") from None
            raise InvalidRequest(
                f"cron: {self.cron!r}: {self._wrong_field(croniter) or 'it has no meaning'}."
            ) from None
        return next_time

    def _wrong_field(self, croniter: Any) -> str | None:
        """Return which of the fields has no meaning by itself; None if each has one."""
        for place, (text, name) in enumerate(zip(self._fields, _FIELD_NAMES, strict=True)):
            alone = ["*"] * 6
            alone[place] = text
            if not croniter.is_valid(" ".join(alone), second_at_beginning=True):
                return f"{text} is not {name}"
        return None

    def _by_the_clock(self, moment: datetime) -> datetime:
        wall = _wall(moment, self._zone)
        while True:
            wall = self._next_on_the_wall(wall)
            next_time = _instant(wall, self._zone)
            # Not after it: the second pass through an hour, or several skipped times at one change.
            if next_time > moment:
                return next_time

    def _elapsing(self, moment: datetime) -> datetime:
        while True:
            offset = _offset(moment, self._zone)
            next_time = (self._next_on_the_wall(_wall(moment, self._zone)) - offset).replace(tzinfo=timezone.utc)
            if _offset(next_time, self._zone) == offset:
                return next_time
            change = _change(moment, next_time, self._zone)
            # What fires at the very moment of the change counts, too.
            at = _wall(change, self._zone)
            first = (self._next_on_the_wall(at - _SECOND) - _offset(change, self._zone)).replace(tzinfo=timezone.utc)
            if first == change:
                return change
            moment = change


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _VALUES[text]


def _mistaken(part: str, low: int, high: int) -> str | None:
    """Return why a part of a field, which has a meaning, hardly has the one that was meant, and what to write; or None.

    A range that goes backwards is 5 to 59 and 0 to 3 for croniter, but 3-3 is everything.
    """
    matched = _PART.match(part)
    if matched is None:
        return None
    first, last, step = (None if text is None else _number(text) for text in matched.groups())
    begin, end = low if first is None else first, high if last is None else last
    if last is not None and begin == last:
        return f"{part} is one value: write {begin}."
    if begin > high:
        # A Sunday may be 7.
        begin = low
    if begin > end:
        each = "" if step is None else f"/{step}"
        parts = [
            f"{first}" if first == last else f"{first}-{last}{each}" for first, last in ((begin, high), (low, end))
        ]
        return f"{part} goes backwards: write {','.join(parts)}."
    if step is not None and step > end - begin + 1:
        return (
            f"{part} is {begin} alone, because the step is longer than {begin} to {end}: write {begin}, or in place of "
            "cron give `every`, which counts seconds."
        )
    return None


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _wall(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _instant(wall: datetime, zone: tzinfo) -> datetime:
    """Return when a clock on the wall first shows ``wall``; of a time that it skips, the moment when it does."""
    instant = wall.replace(tzinfo=zone).astimezone(timezone.utc)
    if _wall(instant, zone) == wall:
        return instant
    day = timedelta(days=1)
    return _change(instant - day, instant + day, zone)


def _change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """Return the moment between two, to the second, from which on the zone's offset is not that of the first."""
    offset = _offset(before, zone)
    low, high = before, after
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if middle <= low:
            break
        low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
    return high
