"""The waits of the tests: they end when it is time, and a failure says what was awaited and what was seen last."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, repeat

import pytest

from tests.deadlines import eventually, eventually_equal, eventually_raises, given_time, settled

SHORT = 0.05


@pytest.fixture
def numbers() -> Iterator[int]:
    return count()


def test_a_wait_returns_the_first_value_that_holds(numbers: Iterator[int]) -> None:
    assert eventually(lambda: next(numbers), "it never gets there", holds=lambda number: number > 3) == 4
    eventually_equal(lambda: next(numbers), 7, "it never gets there")
    assert next(numbers) == 8


def test_a_failure_names_what_was_awaited_and_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"^the job runs on; last seen within 0.05 s: \['sleep'\]$"):
        eventually(lambda: ["sleep"], "the job runs on", holds=lambda names: not names, seconds=SHORT)
    with pytest.raises(AssertionError, match=r"^it runs; expected: 'ended'; last seen within 0.05 s: \nbusy$"):
        eventually_equal(lambda: "busy", "ended", "it runs", seconds=SHORT)


def test_what_needs_more_time_is_given_more_and_no_more_than_a_minute() -> None:
    assert given_time(lambda seconds: seconds, lambda seconds: seconds > 1, seconds=0.5) == 2.0
    assert given_time(lambda seconds: seconds, lambda _: False, seconds=0.5) == 32.0


def test_only_ignored_exceptions_mean_not_yet(numbers: Iterator[int]) -> None:
    assert eventually(lambda: 6 // next(numbers), "it never divides", ignoring=ZeroDivisionError) == 6
    with pytest.raises(AssertionError, match=r"it never divides; .*ZeroDivisionError"):
        eventually(lambda: 1 // 0, "it never divides", ignoring=ZeroDivisionError, seconds=SHORT)
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 // 0, "it never divides", ignoring=ValueError)


def test_a_wait_for_a_refusal_returns_the_exception(numbers: Iterator[int]) -> None:
    refused = eventually_raises(lambda: 1 // (3 - next(numbers)), ZeroDivisionError, "it is never refused")
    assert isinstance(refused, ZeroDivisionError)
    with pytest.raises(AssertionError, match=r"it is never refused; last seen within 0.05 s: 1"):
        eventually_raises(lambda: 1, ZeroDivisionError, "it is never refused", seconds=SHORT)


def test_a_value_has_settled_when_it_has_not_changed_for_long_enough() -> None:
    values = chain([1, 2, 3, 3], repeat(4))
    assert settled(lambda: next(values), SHORT, "it changes all the time") == 4
