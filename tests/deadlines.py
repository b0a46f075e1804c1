"""How tests wait: they look until what must happen has happened, and fail at a deadline that a good run never meets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")
Failure = TypeVar("Failure", bound=Exception)

DEADLINE_SECONDS = 60.0
"""How long tests wait for what must happen; only a failing test waits that long."""

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1
"""Seconds between two looks. They grow, since a look may start programs on a remote host."""


def eventually(
    look: Callable[[], Seen],
    what: str,
    *,
    holds: Callable[[Seen], object] = bool,
    seconds: float = DEADLINE_SECONDS,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
) -> Seen:
    """Call ``look`` until ``holds`` accepts its value, and return this value.

    :param what: the complaint if that never happens, such as "the job runs on"; the last value is added to it
    :param ignoring: exceptions of ``look`` that mean "not yet"; all others end the wait
    :raises AssertionError: ``holds`` has accepted no value within ``seconds``
    """
    __tracebackhide__ = True
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
    while True:
        last: object
        try:
            seen = look()
        except ignoring as error:
            last = error
        else:
            if holds(seen):
                return seen
            last = seen
        if time.monotonic() > deadline:
            shown = f"\n{last}" if isinstance(last, str) else repr(last)
            raise AssertionError(f"{what}; last seen within {seconds:g} s: {shown:.4000}")
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_PAUSE)


def eventually_equal(
    look: Callable[[], object], expected: object, what: str, *, seconds: float = DEADLINE_SECONDS
) -> None:
    """Call ``look`` until it returns ``expected``.

    :raises AssertionError: as for :func:`eventually`; the message names the expected and the last value
    """
    __tracebackhide__ = True
    eventually(look, f"{what}; expected: {expected!r}", holds=lambda seen: seen == expected, seconds=seconds)


def given_time(attempt: Callable[[float], Seen], holds: Callable[[Seen], object], *, seconds: float = 0.5) -> Seen:
    """Call ``attempt`` with ``seconds``, and with ever more until ``holds`` accepts its value; return the last value.

    For what is cut off by its time after it has got somewhere: how far it gets in a second depends on the machine.
    """
    while True:
        seen = attempt(seconds)
        if holds(seen) or seconds > DEADLINE_SECONDS / 3:
            return seen
        seconds *= 4


def settled(look: Callable[[], Seen], quiet_seconds: float, what: str) -> Seen:
    """Call ``look`` until its value has not changed for ``quiet_seconds``, and return this value.

    :raises AssertionError: as for :func:`eventually`
    """
    __tracebackhide__ = True
    value, since = look(), time.monotonic()

    def quiet() -> tuple[float, Seen]:
        nonlocal value, since
        if (now := look()) != value:
            value, since = now, time.monotonic()
        return time.monotonic() - since, value

    return eventually(quiet, what, holds=lambda seen: seen[0] >= quiet_seconds)[1]


def eventually_raises(
    attempt: Callable[[], object], expected: type[Failure], what: str, *, seconds: float = DEADLINE_SECONDS
) -> Failure:
    """Repeat ``attempt`` until it raises ``expected``, and return the exception.

    :raises AssertionError: as for :func:`eventually`
    """
    __tracebackhide__ = True

    def refusal() -> Failure | object:
        try:
            return attempt()
        except expected as error:
            return error

    refused = eventually(refusal, what, holds=lambda seen: isinstance(seen, expected), seconds=seconds)
    assert isinstance(refused, expected)
    return refused
