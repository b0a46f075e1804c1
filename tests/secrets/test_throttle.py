"""Failed unlocks are throttled, and never lock a user out permanently."""

from __future__ import annotations

import pytest

from connmgr.errors import UnlockThrottled
from connmgr.secrets.passphrases import Delays, Guesser, Throttle
from tests.clock import Clock

ONE, OTHER = Guesser("one"), Guesser("other")


def wait_of(throttle: Throttle, name: str, guesser: Guesser = ONE) -> int:
    try:
        with throttle.attempt(name, guesser):
            return 0
    except UnlockThrottled as refusal:
        return refusal.retry_after


def test_the_delay_grows_to_a_limit(clock: Clock) -> None:
    throttle = Throttle(user=Delays(3, 60), overall=Delays(10_000, 1), clock=clock)
    waits = []
    for _ in range(14):
        throttle.failed("alice", ONE)
        waits.append(wait_of(throttle, "alice"))
        clock.now += waits[-1]
    assert waits == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]


def test_whoever_waits_gets_in_however_often_others_are_refused(clock: Clock) -> None:
    throttle = Throttle(clock=clock)
    for _ in range(30):
        throttle.failed("alice", ONE)
    with pytest.raises(UnlockThrottled, match="try again in 60 s") as refusal:
        throttle.attempt("alice", ONE).__enter__()
    assert refusal.value.status == 503
    assert "alice" not in refusal.value.message
    wait = refusal.value.retry_after
    for _ in range(wait):
        assert wait_of(throttle, "alice") > 0
        clock.now += 1
    assert wait_of(throttle, "alice") == 0
    throttle.succeeded("alice", ONE)
    throttle.failed("alice", ONE)
    assert wait_of(throttle, "alice") <= 10, "a success does not forget the failures before it"


def test_users_are_counted_apart_and_together(clock: Clock) -> None:
    throttle = Throttle(clock=clock)
    for _ in range(5):
        throttle.failed("alice", ONE)
    assert wait_of(throttle, "alice") > 0
    assert wait_of(throttle, "bob") == 0
    for number in range(20):
        throttle.failed(f"user{number}", ONE)
    assert 0 < wait_of(throttle, "bob") <= 10


def test_failures_are_forgotten_after_a_while(clock: Clock) -> None:
    throttle = Throttle(memory=900, clock=clock)
    for _ in range(10):
        throttle.failed("alice", ONE)
    clock.now += 901
    throttle.failed("alice", ONE)
    assert wait_of(throttle, "alice") == 0


def test_names_that_do_not_exist_cannot_fill_the_memory(clock: Clock) -> None:
    throttle = Throttle(names=10, clock=clock)
    for number in range(1000):
        throttle.failed(f"user{number}", ONE)
    assert len(throttle._by_name) == 10


def test_failures_of_one_guesser_delay_nobody_else(clock: Clock) -> None:
    throttle = Throttle(clock=clock)
    for number in range(100):
        throttle.failed("alice", ONE)
        throttle.failed(f"user{number}", ONE)
    assert wait_of(throttle, "alice") > 0
    assert wait_of(throttle, "bob") > 0, "a guesser of many names is not delayed"
    for guesser in (OTHER, Guesser(), Guesser(origin="127.0.0.1", session="1")):
        assert wait_of(throttle, "alice", guesser) == 0


def test_a_guesser_tries_one_passphrase_at_a_time(clock: Clock) -> None:
    throttle = Throttle(clock=clock)
    with throttle.attempt("alice", ONE):
        assert wait_of(throttle, "bob") > 0
        assert wait_of(throttle, "alice", OTHER) == 0
    assert wait_of(throttle, "bob") == 0
    with throttle.attempt("alice", Guesser(origin="127.0.0.1", session="1")):
        other = Guesser(origin="127.0.0.1", session="2")
        assert wait_of(throttle, "alice", other) == 0, "people who share the owner's key wait for each other"


def test_an_attempt_knows_whether_its_guesser_has_failed_before(clock: Clock) -> None:
    throttle = Throttle(clock=clock)
    with throttle.attempt("alice", ONE) as failed_before:
        assert not failed_before
    throttle.failed("bob", ONE)
    with throttle.attempt("alice", ONE) as failed_before:
        assert failed_before
    with throttle.attempt("alice", OTHER) as failed_before:
        assert not failed_before
