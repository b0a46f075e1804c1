"""The loop: who is called in which thread and in which order, what exceptions do, and descriptors of every kind."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from connmgr.streams.endpoints import DescriptorEndpoint
from connmgr.streams.loop import Loop
from tests.deadlines import DEADLINE_SECONDS
from tests.streams.endpoints import running_loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    with running_loop() as loop:
        yield loop


@pytest.fixture
def foreground() -> Iterator[Loop]:
    loop = Loop(foreground=True)
    yield loop
    loop.close()


def test_calls_of_many_threads_are_made_in_their_order_in_one_thread(loop: Loop) -> None:
    made: list[tuple[int, int]] = []
    threads: set[str] = set()
    over = threading.Event()

    def call(caller: int, number: int) -> None:
        threads.add(threading.current_thread().name)
        made.append((caller, number))
        if len(made) == 800:
            over.set()

    def schedule(caller: int) -> None:
        for number in range(200):
            loop.call(partial(call, caller, number))

    callers = [threading.Thread(target=schedule, args=(caller,)) for caller in range(4)]
    for caller in callers:
        caller.start()
    assert over.wait(DEADLINE_SECONDS)
    assert threads == {"test"}
    assert sorted(made) == [(caller, number) for caller in range(4) for number in range(200)]
    assert all([number for by, number in made if by == caller] == list(range(200)) for caller in range(4))


def test_a_call_of_a_call_is_made_after_it_and_timers_in_their_order(loop: Loop) -> None:
    made: list[str] = []
    over = threading.Event()

    def first() -> None:
        loop.call(lambda: made.append("second"))
        loop.after(0.02, lambda: made.append("fourth"))
        loop.after(0.01, lambda: made.append("third"))
        loop.after(0.015, lambda: made.append("never")).cancel()
        loop.after(0.03, over.set)
        made.append("first")

    loop.call(first)
    assert over.wait(DEADLINE_SECONDS)
    assert made == ["first", "second", "third", "fourth"]


def test_an_exception_of_a_call_is_logged_and_ends_no_other(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()

    def fail() -> None:
        raise SystemExit("a plugin may raise anything")

    with caplog.at_level(logging.ERROR, "connmgr.streams"):
        loop.call(fail)
        loop.after(0.0, fail)
        loop.work(fail)
        loop.call(lambda: loop.after(0.01, over.set))
        assert over.wait(DEADLINE_SECONDS)
    assert "a plugin may raise anything" in caplog.text


def test_an_earlier_call_of_the_round_may_end_a_watch(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    ready: list[int] = []
    over = threading.Event()

    def take(descriptor: int) -> None:
        ready.append(descriptor)
        for ours, _ in pairs:
            loop.unwatch(ours.fileno())
        over.set()

    def begin() -> None:
        for ours, theirs in pairs:
            theirs.send(b"x")
            loop.watch(ours.fileno(), selectors.EVENT_READ, lambda _, ours=ours: take(ours.fileno()))  # type: ignore[misc]

    loop.call(begin)
    assert over.wait(DEADLINE_SECONDS)
    for pair in pairs:
        for end in pair:
            end.close()
    assert len(ready) == 1


def test_no_call_happens_after_the_end(loop: Loop) -> None:
    made: list[str] = []
    loop.call(lambda: made.append("before"))
    loop.after(0.0, lambda: None)
    loop.close(DEADLINE_SECONDS)
    loop.call(lambda: made.append("after"))
    loop.work(lambda: made.append("here"))
    assert made == ["before", "here"]
    assert "test" not in {thread.name for thread in threading.enumerate()}


def test_the_foreground_raises_what_a_call_raises(foreground: Loop) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    foreground.call(fail)
    with pytest.raises(KeyboardInterrupt):
        foreground.run(lambda: False)


def test_signals_are_calls_of_the_foreground_and_interrupt_nothing(foreground: Loop) -> None:
    heard: list[str] = []
    before = signal.getsignal(signal.SIGWINCH)
    calls = {signal.SIGWINCH: lambda: heard.append("resized"), signal.SIGUSR1: lambda: heard.append("used")}
    with foreground.signals(calls):
        for number in calls:
            os.kill(os.getpid(), number)
        assert heard == []
        foreground.run(lambda: len(heard) == 2)
    assert sorted(heard) == ["resized", "used"]
    assert signal.getsignal(signal.SIGWINCH) is before


def test_standard_input_may_be_a_file_and_shared_descriptors_stay_as_they_are(foreground: Loop, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    (tmp_path / "input").write_bytes(content)
    read, write = os.pipe()
    arrived = bytearray()

    class Receiver:
        over_by: object = None
        has_ended = False

        def arrived(self, data: bytes | memoryview, kind: int = 0) -> None:
            arrived.extend(data)

        def taken(self, size: int) -> None: ...

        def ended(self) -> None:
            self.has_ended = True

        def over(self, outcome: object) -> None:
            self.over_by = outcome

    receiver = Receiver()
    with (tmp_path / "input").open("rb") as source:
        endpoint = DescriptorEndpoint(foreground, source.fileno(), write, write)
        endpoint.begin(receiver)
        foreground.run(lambda: receiver.has_ended)
        assert arrived == content
        endpoint.write(content)
        assert endpoint.unwritten > 0, "a pipe took all, or the write has blocked"
        assert (os.get_blocking(write), os.get_blocking(source.fileno())) == (True, True)
        got = bytearray()

        def drain() -> bool:
            got.extend(os.read(read, 1 << 16))
            return len(got) == len(content)

        foreground.run(drain)
        os.close(read)
        endpoint.write(b"to nobody")
        assert isinstance(receiver.over_by, BrokenPipeError)
    assert got == content
    os.close(write)
