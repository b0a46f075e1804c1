"""When schedules fire: calendars, changed clocks, what never fires."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.errors import InvalidRequest
from connmgr.schedules.times import MOST_COUNTED, Timing, zone_of

VIENNA = "Europe/Vienna"
FORWARD = datetime(2026, 3, 29, 1, tzinfo=timezone.utc)
"""The clock of Vienna goes from 2:00 to 3:00."""

BACK = datetime(2026, 10, 25, 1, tzinfo=timezone.utc)
"""It goes from 3:00 to 2:00."""


def times(cron: str, begin: datetime, count: int, zone: str = VIENNA) -> list[str]:
    timing, moment, found = Timing(cron, None, zone, begin), begin, []
    for _ in range(count):
        moment = timing.after(moment)
        found.append(moment.astimezone(ZoneInfo(zone)).strftime("%d. %H:%M:%S %z"))
    return found


def test_a_skipped_time_comes_with_the_change_and_once() -> None:
    eve = FORWARD - timedelta(hours=20)
    assert times("30 2 * * *", eve, 2) == ["29. 03:00:00 +0200", "30. 02:30:00 +0200"]
    assert times("15,45 2 * * *", eve, 3) == ["29. 03:00:00 +0200", "30. 02:15:00 +0200", "30. 02:45:00 +0200"]
    assert times("0 3 * * *", eve, 2) == ["29. 03:00:00 +0200", "30. 03:00:00 +0200"]


def test_a_time_that_comes_twice_fires_once() -> None:
    eve = BACK - timedelta(hours=20)
    assert times("30 2 * * *", eve, 2) == ["25. 02:30:00 +0200", "26. 02:30:00 +0100"]
    # Also for whoever looks between the two.
    assert times("30 2 * * *", BACK + timedelta(minutes=10), 1) == ["26. 02:30:00 +0100"]
    assert times("0 1-4 * * *", eve, 5) == [
        *("25. 01:00:00 +0200", "25. 02:00:00 +0200", "25. 03:00:00 +0100", "25. 04:00:00 +0100", "26. 01:00:00 +0100"),
    ]


def test_any_hour_goes_by_the_elapsed_time() -> None:
    half = timedelta(minutes=30)
    for change in (FORWARD, BACK):
        timing, moment = Timing("*/30 * * * *", None, VIENNA, change), change - timedelta(hours=3)
        for _ in range(12):
            following = timing.after(moment)
            assert following - moment == half
            moment = following


@given(st.integers(0, 366 * 24 * 60), st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 1-3 * * *", "5 */2 * * *"]))
@settings(max_examples=100, deadline=None)
def test_the_next_time_does_not_depend_on_when_one_asks(minutes: int, cron: str) -> None:
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=minutes, seconds=1)
    timing = Timing(cron, None, VIENNA, begin)
    first = timing.after(begin)
    assert first > begin
    between = begin + (first - begin) / 2
    assert timing.after(between) == first
    assert timing.after(first) > first


def test_seconds_stand_first() -> None:
    begin = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
    assert times("*/20 0 * * * *", begin, 3, "UTC") == [
        "01. 12:00:20 +0000",
        "01. 12:00:40 +0000",
        "01. 13:00:00 +0000",
    ]


@pytest.mark.parametrize(
    ("fields", "minutes", "count"),
    [
        ({"every": 60.0}, 0, 0),
        ({"every": 60.0}, 5, 5),
        ({"every": 0.01}, 60, MOST_COUNTED),
        ({"cron": "*/2 * * * *"}, 5, 2),
        ({"cron": "* * * * * *"}, 60, MOST_COUNTED),
        ({"cron": "0 0 1 1 *"}, 5, 0),
    ],
)
def test_times_between_two_moments_are_counted(fields: dict[str, Any], minutes: int, count: int) -> None:
    at = datetime(2026, 3, 4, 12, tzinfo=timezone.utc)
    timing = Timing(**{"cron": None, "every": None, "timezone": "UTC", "anchor": at, **fields})
    assert timing.count(at, at + timedelta(minutes=minutes)) == count


def test_an_interval_counts_from_its_anchor() -> None:
    begin = datetime(2026, 5, 1, tzinfo=timezone.utc)
    timing = Timing(None, 0.1 + 0.2, "UTC", begin)
    moment = begin
    for number in range(1, 200):
        moment = timing.after(moment)
        assert abs((moment - begin).total_seconds() - number * 0.3) < 0.001
    assert Timing(None, 90, "UTC", begin).after(begin + timedelta(days=1)) == begin + timedelta(days=1, seconds=90)


@pytest.mark.parametrize(
    ("cron", "reason"),
    [
        ("*/90 * * * *", "cron: '*/90 * * * *': */90 is 0 alone, because the step is longer than 0 to 59: write 0"),
        ("0/90 * * * *", "0/90 is 0 alone"),
        ("*/90 0 * * * *", "*/90 is 0 alone"),
        ("0 */25 * * *", "*/25 is 0 alone"),
        ("0 0 */32 * *", "*/32 is 1 alone"),
        ("0 0 1 */13 *", "*/13 is 1 alone"),
        ("0 0 * * */8", "*/8 is 0 alone"),
        ("0 9-17/24 * * *", "9-17/24 is 9 alone, because the step is longer than 9 to 17"),
        ("5,55/10 * * * *", "55/10 is 55 alone"),
        # croniter takes the first of them as 56 minutes of each hour, and 3-3 as all.
        ("5-3 * * * *", "cron: '5-3 * * * *': 5-3 goes backwards: write 5-59,0-3."),
        ("3-3 * * * *", "3-3 is one value: write 3."),
        ("0 23-1/2 * * *", "23-1/2 goes backwards: write 23,0-1/2."),
        ("0 0 * * Fri-mon", "fri-mon goes backwards: write 5-6,0-1."),
        ("0 0 1 dec-jan *", "dec-jan goes backwards: write 12,1."),
        ("0 0 31 2 *", "cron: '0 0 31 2 *': it never fires."),
        ("0 0 30 2 *", "it never fires"),
        ("0 0 31 4,6,9,11 *", "it never fires"),
        ("61 * * * *", "cron: '61 * * * *': 61 is not a minute."),
        ("0 25 * * *", "cron: '0 25 * * *': 25 is not an hour."),
        ("* * *", "does not have five fields"),
        ("* * * * * * *", "does not have five fields"),
        ("H * * * *", "does not have five fields"),
        ("R * * * *", "does not have five fields"),
        ("a b c d e", "a is not a minute"),
        ("*/0 * * * *", "*/0 is not a minute"),
        ("0 0 0 * * 9", "9 is not a weekday"),
        ("", "does not have five fields"),
    ],
)
def test_what_never_fires_is_told(cron: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Timing(cron, None, "UTC", BACK).check()
    assert reason in refused.value.message


def test_a_leap_day_comes_again_after_eight_years() -> None:
    begin = datetime(2096, 3, 1, tzinfo=timezone.utc)
    assert Timing("0 0 29 2 *", None, "UTC", begin).after(begin) == datetime(2104, 2, 29, tzinfo=timezone.utc)


@pytest.mark.parametrize("name", ["Mars/Base", "", "../../etc/passwd", "Europe", "/etc/localtime", "x" * 99, "a\0b"])
def test_a_zone_that_does_not_exist_is_told(name: str) -> None:
    with pytest.raises(InvalidRequest, match="There is no time zone"):
        zone_of(name)


@pytest.mark.parametrize(
    "cron",
    [
        *(
            "*/60 * * * *",
            "*/30 */24 * * *",
            "7/15 * * * *",
            "50/10 * * * *",
            "0 0 * * 7",
            "0 0 * * 5-7",
            "0 0 * * 7-1",
        ),
        *(
            "0 0 * * sun-tue",
            "0 0 1-31/2 jan,jul *",
            "0 0 l * *",
            "0 0 * * 5#3",
            "0 0 ? * MON",
            "@weekly",
            "00 08 * * *",
        ),
    ],
)
def test_what_has_one_meaning_is_taken(cron: str) -> None:
    Timing(cron, None, "UTC", BACK).check()


def test_a_stored_schedule_fires_as_it_did() -> None:
    assert times("*/90 * * * *", BACK, 2, "UTC") == ["25. 02:00:00 +0000", "25. 03:00:00 +0000"]
