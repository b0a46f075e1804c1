"""The second link of a session whose first link refuses another channel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from connmgr.errors import ChannelRefused, ConnectTimeout, ShellLost
from connmgr.links.chain import Chain
from connmgr.links.link import SpareTransport
from connmgr.plugin import Channel, Pty, Transport
from tests.deadlines import DEADLINE_SECONDS


class Link(Transport):
    """A link whose channels ``opening`` returns; it records the timeouts."""

    def __init__(self, opening: Callable[[Sequence[str]], object]) -> None:
        self._opening = opening
        self.timeouts: list[float] = []
        self.closed = False

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        self.timeouts.append(timeout)
        if self.closed:
            raise ShellLost("It is closed.")
        return cast(Channel, self._opening(argv))

    def close(self) -> None:
        self.closed = True


class Links:
    """Opens links one after the other; ``asked`` are the timeouts in seconds."""

    def __init__(self, *openings: Callable[[Sequence[str]], object]) -> None:
        self.links = [Link(opening) for opening in openings]
        self.asked: list[float] = []

    def __call__(self, seconds: float) -> Chain:
        link = self.links[len(self.asked)]
        self.asked.append(seconds)
        chain: Any = Chain(link, (), (), threading.Lock())  # type: ignore[arg-type]
        chain.close = link.close
        return cast(Chain, chain)


def refuse(_: Sequence[str]) -> object:
    raise ChannelRefused("no more")


def lose(_: Sequence[str]) -> object:
    raise ShellLost("gone")


@pytest.fixture
def full() -> Link:
    """A link that refuses every channel."""
    return Link(refuse)


def test_the_spare_is_opened_once_and_closed_with_the_session(full: Link) -> None:
    others = Links(lambda argv: argv)
    spare = SpareTransport(full, others)
    assert [spare.open_channel([word], timeout=DEADLINE_SECONDS) for word in "ab"] == [["a"], ["b"]]
    assert len(others.asked) == 1
    assert others.asked[0] <= DEADLINE_SECONDS, "it may take longer than whoever waits"
    spare.close()
    assert others.links[0].closed


def test_a_session_that_was_stopped_meanwhile_gets_no_link(full: Link) -> None:
    begun = threading.Event()

    def busy(argv: Sequence[str]) -> object:
        begun.set()
        return refuse(argv)

    others = Links(busy, lambda argv: argv)
    spare = SpareTransport(full, others)
    outcome: list[Exception] = []

    def operate() -> None:
        with pytest.raises(ShellLost) as caught:
            spare.open_channel(["sh"], timeout=DEADLINE_SECONDS)
        outcome.append(caught.value)

    operation = threading.Thread(target=operate)
    operation.start()
    assert begun.wait(DEADLINE_SECONDS)
    spare.close()
    operation.join(DEADLINE_SECONDS)
    assert outcome
    assert len(others.asked) == 1
    assert others.links[0].closed


def test_a_link_that_is_opened_while_the_session_is_stopped_is_closed(full: Link) -> None:
    others = Links(lambda argv: argv)

    def open_and_stop(seconds: float) -> Chain:
        spare.close()
        return others(seconds)

    spare = SpareTransport(full, open_and_stop)
    with pytest.raises(ShellLost):
        spare.open_channel(["sh"], timeout=DEADLINE_SECONDS)
    assert others.links[0].closed


class Overtaking:
    """A lock whose waiter gets it before the releasing thread continues, and holds it until ``go_on``."""

    def __init__(self, waiter: threading.Thread, then: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._waiter = waiter
        self._then = then
        self._has_it, self.go_on = threading.Event(), threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken and threading.current_thread() is self._waiter:
            self._has_it.set()
            assert self.go_on.wait(DEADLINE_SECONDS)
        return taken

    def release(self) -> None:
        self._lock.release()
        if threading.current_thread() is not self._waiter:
            self._waiter.start()
            assert self._has_it.wait(DEADLINE_SECONDS)
            self._then()


def test_a_waiter_for_a_link_of_a_session_that_is_stopped_closes_it(full: Link) -> None:
    others = Links(lambda argv: argv)
    spare = SpareTransport(full, others)
    refused: list[Exception] = []

    def operate() -> None:
        with pytest.raises(ShellLost) as caught:
            spare.open_channel(["sh"], timeout=DEADLINE_SECONDS)
        refused.append(caught.value)

    waiter = threading.Thread(target=operate)
    lock = Overtaking(waiter, then=spare.close)
    spare._lock = lock  # type: ignore[assignment]
    operate()
    lock.go_on.set()
    waiter.join(DEADLINE_SECONDS)
    assert len(refused) == 2
    assert others.links[0].closed, "nobody has closed the second link of a session that was stopped"


def test_a_lost_second_link_is_replaced_once_for_all_threads(full: Link) -> None:
    together = threading.Barrier(2)

    def lose_together(argv: Sequence[str]) -> object:
        together.wait(DEADLINE_SECONDS)
        return lose(argv)

    others = Links(lose_together, lambda argv: argv)
    spare = SpareTransport(full, others)
    opened: list[object] = []
    threads = [
        threading.Thread(target=lambda word=word: opened.append(spare.open_channel([word], timeout=DEADLINE_SECONDS)))  # type: ignore[misc]
        for word in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert sorted(opened) == [["a"], ["b"]]  # type: ignore[type-var]
    assert [link.closed for link in others.links] == [True, False]


def test_an_idle_channel_is_closed_first_and_the_login_has_the_whole_timeout() -> None:
    spared: list[str] = []

    def once_spared(argv: Sequence[str]) -> object:
        return argv if spared else refuse(argv)

    first = Link(once_spared)
    spare = SpareTransport(first, Links(), lambda: not spared.append("helper"))  # type: ignore[func-returns-value]
    assert spare.open_channel(["sh"], timeout=DEADLINE_SECONDS) == ["sh"]
    assert first.timeouts[1] > DEADLINE_SECONDS / 2


def test_a_thread_that_waits_for_another_to_open_the_second_link_keeps_its_timeout(full: Link) -> None:
    begun, gate = threading.Event(), threading.Event()

    def slowly(seconds: float) -> Chain:
        begun.set()
        assert gate.wait(DEADLINE_SECONDS)
        return others(seconds)

    others = Links(lambda argv: argv)
    spare = SpareTransport(full, slowly)
    opening = threading.Thread(target=spare.open_channel, args=(["sh"],), kwargs={"timeout": DEADLINE_SECONDS})
    opening.start()
    assert begun.wait(DEADLINE_SECONDS)
    with pytest.raises(ConnectTimeout):
        spare.open_channel(["sh"], timeout=0.2)
    gate.set()
    opening.join(DEADLINE_SECONDS)
    spare.close()
    assert others.links[0].closed


def test_a_channel_that_becomes_idle_later_is_closed_then(full: Link) -> None:
    spared: list[str] = []

    def taken(argv: Sequence[str]) -> object:
        return argv if spared else refuse(argv)

    looks = iter([False, False, True])

    def give_up() -> bool:
        given_up = next(looks, True)
        if given_up:
            spared.append("the idle one")
        return given_up

    spare = SpareTransport(full, Links(taken), give_up)
    assert spare.open_channel(["sh"], timeout=DEADLINE_SECONDS) == ["sh"]
