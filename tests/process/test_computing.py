"""A token computes in one thread at a time, after the owner, and keeps no other waiting while it waits itself."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext

import pytest

from connmgr.api.services import RequestSlots
from connmgr.computing import (
    CROWD,
    CROWDED_SECONDS,
    Computing,
    Pace,
    Rests,
    Switching,
    drained,
    give_way,
    in_pieces,
    waiting,
)
from connmgr.pipes.streams import Streams
from connmgr.suspension import Continuation, Suspended
from tests.deadlines import DEADLINE_SECONDS

WHILE_SECONDS = 0.1
"""Time in which something that must not happen is not seen."""


class Request:
    """Computes for ``holder`` in a thread of its own, ``inside`` something, until ``let_go`` is set."""

    def __init__(
        self,
        computing: Computing,
        holder: str | None,
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

        def run() -> None:
            with computing.turn(holder), inside():
                self.begun.set()
                assert self.let_go.wait(DEADLINE_SECONDS)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    @property
    def waits(self) -> bool:
        return not self.begun.wait(WHILE_SECONDS)

    @property
    def begins(self) -> bool:
        return self.begun.wait(DEADLINE_SECONDS)

    def end(self) -> None:
        self.let_go.set()
        self._thread.join()


Begin = Callable[..., Request]


@pytest.fixture
def computing() -> Computing:
    return Computing(longest=DEADLINE_SECONDS, owner=DEADLINE_SECONDS)


@pytest.fixture
def begin(computing: Computing) -> Iterator[Begin]:
    """A function that begins a :class:`Request`, which ends with the test at the latest."""
    with ExitStack() as stack:

        def begun(holder: str | None, **options: Callable[[], AbstractContextManager[object]]) -> Request:
            request = Request(computing, holder, **options)
            stack.callback(request.end)
            return request

        yield begun


def test_a_token_computes_in_one_thread_and_another_token_beside_it(begin: Begin) -> None:
    first = begin("token")
    assert first.begins
    second = begin("token")
    assert second.waits
    assert begin("another").begins, "a token waits for another one"
    first.end()
    assert second.begins, "the turn is not passed on"


def test_the_owner_computes_at_once_and_a_token_begins_after_that(begin: Begin) -> None:
    token = begin("token")
    assert token.begins
    owner = [begin(None), begin(None)]
    assert all(one.begins for one in owner), "the owner waits for a token, or for itself"
    another = begin("another")
    assert another.waits
    for one in owner:
        one.end()
    assert another.begins


def test_a_thread_that_serves_all_puts_tokens_off_while_one_computes_for_the_owner_but_not_for_long() -> None:
    computing = Computing()
    rests = Rests(computing, owner=WHILE_SECONDS)
    assert not rests.before("token")
    with computing.turn(None):
        began = time.monotonic()
        assert not rests.before(None), "the owner waits for itself"
        while rests.before("token"):
            pass
        assert time.monotonic() - began >= WHILE_SECONDS
        assert rests.before("token"), "only the piece that has waited may begin"
    assert not rests.before("token")


@pytest.mark.parametrize("inside", [nullcontext, waiting])
@pytest.mark.parametrize("work", [give_way, lambda: list(in_pieces([1, 2]))], ids=["give_way", "in_pieces"])
def test_a_token_s_long_work_stops_for_the_owner_even_where_it_waits_for_a_machine(
    computing: Computing,
    begin: Begin,
    inside: Callable[[], AbstractContextManager[object]],
    work: Callable[[], object],
) -> None:
    entered, goes_on, over = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        with computing.turn("token"), inside():
            entered.set()
            assert goes_on.wait(DEADLINE_SECONDS)
            work()
            over.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert entered.wait(DEADLINE_SECONDS)
    owner = begin(None)
    assert owner.begins
    goes_on.set()
    assert not over.wait(WHILE_SECONDS), "it goes on beside the owner's request"
    owner.end()
    assert over.wait(DEADLINE_SECONDS)
    thread.join()


@pytest.mark.parametrize(
    "inside",
    [
        waiting,
        lambda: RequestSlots(2).taken("token"),
        lambda: RequestSlots(0).taken("token", stops=True),
    ],
    ids=["waiting", "in a slot", "in an extra slot"],
)
@pytest.mark.parametrize("holder", ["token", None])
def test_a_request_that_waits_lets_others_compute_and_continues_after_them(
    begin: Begin, holder: str | None, inside: Callable[[], AbstractContextManager[object]]
) -> None:
    first = begin(holder, inside=inside)
    assert first.begins
    second = begin("token")
    assert second.begins
    first.let_go.set()
    second.end()
    first.end()
    assert begin("token").begins, "the turn is lost"


def test_a_turn_within_a_turn_is_the_same_one(computing: Computing, begin: Begin) -> None:
    with computing.turn("token"), computing.turn("token"):
        other = begin("token")
        assert other.waits
    assert other.begins


def test_whoever_takes_long_keeps_others_waiting_for_a_limited_time() -> None:
    computing = Computing(longest=0.05, owner=0.05)
    requests = [Request(computing, holder) for holder in ("token", "token", None, "token")]
    try:
        assert all(request.begins for request in requests)
    finally:
        for request in requests:
            request.end()
    assert not computing._turns, "tokens are never forgotten"


def test_a_request_computes_not_while_it_waits_for_its_pace(begin: Begin, computing: Computing) -> None:
    pace = Pace()
    first = begin("token", inside=lambda: pace.turn("token"))
    assert first.begins
    second = begin("token", inside=lambda: pace.turn("token"))
    assert second.waits
    first.let_go.set()
    with computing.turn("another"):
        assert second.begins, "it waits for its own turn, which it keeps"


def test_a_request_computes_not_while_it_waits_for_news_with_its_thread(begin: Begin, computing: Computing) -> None:
    told: list[Callable[[], None]] = []
    subscribed = threading.Event()

    def subscribe(tell: Callable[[], None]) -> Callable[[], None]:
        told.append(tell)
        subscribed.set()
        return lambda: None

    continuation, suspended = Continuation(), Suspended(subscribe, DEADLINE_SECONDS)

    def wait() -> None:
        with computing.turn("token"):
            continuation.wait(suspended)

    thread = threading.Thread(target=wait)
    thread.start()
    assert subscribed.wait(DEADLINE_SECONDS)
    assert begin("token").begins
    told[0]()
    thread.join(WHILE_SECONDS)
    assert thread.is_alive(), "it goes on beside the other"


def test_long_work_of_a_token_gives_way_to_the_owner(computing: Computing, begin: Begin) -> None:
    goes_on, has_passed = threading.Event(), threading.Event()

    def work() -> None:
        with computing.turn("token"):
            assert goes_on.wait(DEADLINE_SECONDS)
            give_way()
            has_passed.set()

    thread = threading.Thread(target=work)
    thread.start()
    owner = begin(None)
    assert owner.begins
    goes_on.set()
    assert not has_passed.wait(WHILE_SECONDS), "the token goes on beside the owner"
    owner.end()
    assert has_passed.wait(DEADLINE_SECONDS)
    thread.join()


def test_long_work_waits_once_for_an_owner_who_computes_without_an_end() -> None:
    computing = Computing(owner=0.05)
    owner = Request(computing, None)
    try:
        assert owner.begins
        with computing.turn("token"):
            began = time.monotonic()
            for _ in range(1000):
                give_way()
            assert time.monotonic() - began < 1000 * 0.05 / 2
    finally:
        owner.end()


def test_the_owner_and_whoever_has_no_turn_give_way_to_nobody(computing: Computing, begin: Begin) -> None:
    assert begin(None).begins
    give_way()
    with computing.turn(None):
        give_way()


def leaves_the_processor(computing: Computing, holder: str | None, seconds: float) -> bool:
    """Whether a thread of ``holder`` that only computes and gives way sleeps within so many seconds."""
    left = []

    def run() -> None:
        with computing.turn(holder):
            before, until = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, time.monotonic() + seconds
            while not left and time.monotonic() < until:
                give_way()
                left.extend([True] * (resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > before))

    thread = threading.Thread(target=run)
    # Alone with the interpreter: whoever waits for that sleeps, too.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(DEADLINE_SECONDS)
    try:
        thread.start()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    return bool(left)


def test_long_work_of_a_token_leaves_the_processor_to_whoever_waits_there_and_the_owner_s_does_not(
    computing: Computing,
) -> None:
    assert leaves_the_processor(computing, "token", DEADLINE_SECONDS)
    assert not leaves_the_processor(computing, None, WHILE_SECONDS)


def test_a_list_that_is_drained_gives_its_items_in_order_and_lets_go_of_each() -> None:
    items = list(range(100))
    left = [(item, len(items)) for item in drained(items)]
    assert left == [(number, 99 - number) for number in range(100)]


def test_a_token_has_one_screen_drawn_at_a_time_and_the_owner_all(computing: Computing) -> None:
    streams = Streams(computing, Pace(longest=0.0))
    streams.loop.close()

    def drawing(holder: str | None) -> Request:
        return Request(computing, None, inside=lambda: streams.turn(holder))

    token, another, owners = drawing("token"), drawing("token"), [drawing(None), drawing(None)]
    try:
        assert all(one.begins for one in owners)
        assert token.begins
        assert another.waits, "a token's drawings take the interpreter from everybody in turns"
        token.end()
        assert another.begins
    finally:
        for one in (token, another, *owners):
            one.end()


def test_a_crowd_of_threads_waits_longer_for_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [0.0002]
    monkeypatch.setattr(sys, "getswitchinterval", lambda: usual[-1])
    monkeypatch.setattr(sys, "setswitchinterval", usual.append)
    switching = Switching()
    with switching.among(CROWD - 1):
        assert usual == [0.0002]
    with switching.among(CROWD):
        with switching.among(10 * CROWD):
            assert usual[1:] == [CROWDED_SECONDS]
        assert usual[1:] == [CROWDED_SECONDS]
    assert usual[1:] == [CROWDED_SECONDS, 0.0002]
