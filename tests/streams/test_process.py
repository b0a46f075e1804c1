"""How a process's end is found, where its status overtakes its output."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator

import pytest

from connmgr.pipes.remote import RemoteProcess
from connmgr.plugin import Channel
from connmgr.streams.loop import Loop

STATUS = 7
DEADLINE_SECONDS = 20.0


class Terminal(Channel):
    """A terminal whose process has ended, and whose output comes only after the status was read."""

    merged = True

    def __init__(self, *output: bytes, kept_open: bool = False) -> None:
        self.waker, self._readable = os.pipe()[::-1]
        os.write(self.waker, b"x")
        self._output = list(output)
        self._kept_open = kept_open
        self._told = False

    def fileno(self) -> int:
        return self._readable

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if self._told and self._output:
            return self._output.pop(0), b""
        if self._told and not self._kept_open:
            raise EOFError
        return b"", b""

    def sendall(self, data: bytes, timeout: float) -> None:
        raise AssertionError("nobody writes")

    def shutdown_write(self) -> None:
        raise AssertionError("nobody writes")

    def resize(self, columns: int, rows: int) -> None:
        raise AssertionError("nobody resizes")

    def exit_status(self, timeout: float) -> int:
        self._told = True
        return STATUS

    def close(self) -> None:
        os.close(self.waker)
        os.close(self._readable)


class Taking(Channel):
    """A program that ends with its input; ``at_once`` is how many bytes a write takes that must not wait."""

    def __init__(self, at_once: int | None) -> None:
        self._at_once = at_once
        self._ended = threading.Event()
        self.threads: list[str] = []
        self.taken = b""

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if self._ended.wait(timeout):
            raise EOFError
        return b"", b""

    def sendall(self, data: bytes, timeout: float) -> None:
        self._take(data)

    def send_now(self, data: bytes) -> int:
        if self._at_once is None:
            return super().send_now(data)
        if not self._at_once:
            raise BrokenPipeError
        self._take(data[: self._at_once])
        return min(len(data), self._at_once)

    def _take(self, data: bytes) -> None:
        if data:
            self.threads.append(threading.current_thread().name)
            self.taken += data

    def shutdown_write(self) -> None:
        self._ended.set()

    def exit_status(self, timeout: float) -> int:
        return STATUS

    def close(self) -> None:
        self._ended.set()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close(DEADLINE_SECONDS)


def _served(loop: Loop, channel: Channel) -> tuple[bytes, int | None]:
    """Return the output and the status that a process behind ``channel`` is reported to have."""
    printed: list[bytes] = []
    statuses: queue.Queue[int | None] = queue.Queue()
    released = threading.Event()

    def serve() -> None:
        RemoteProcess(
            loop,
            channel,
            output=lambda stdout, _: printed.append(stdout),
            taken=lambda _: None,
            ended=statuses.put,
            released=released.set,
        )

    loop.call(serve)
    status = statuses.get(timeout=DEADLINE_SECONDS)
    assert released.wait(DEADLINE_SECONDS), "its channel was not closed"
    return b"".join(printed), status


def _written(loop: Loop, channel: Channel, *inputs: bytes) -> int:
    """Write ``inputs`` to the process behind ``channel``, and return how many bytes are reported as taken."""
    taken: list[int] = []
    ended: queue.Queue[int | None] = queue.Queue()

    def serve() -> None:
        process = RemoteProcess(
            loop,
            channel,
            output=lambda *_: None,
            taken=taken.append,
            ended=ended.put,
            released=lambda: None,
        )
        for data in inputs:
            process.write(data)
        process.end_input()

    loop.call(serve)
    assert ended.get(timeout=DEADLINE_SECONDS) == STATUS
    return sum(taken)


def test_keys_are_written_by_the_thread_of_the_loop(loop: Loop) -> None:
    channel = Taking(at_once=100)
    assert _written(loop, channel, b"k", b"e", b"y") == 3
    assert (channel.taken, channel.threads) == (b"key", ["streams"] * 3)


@pytest.mark.parametrize("at_once", [None, 1, 100])
def test_input_stays_in_order_where_only_a_part_is_written_at_once(loop: Loop, at_once: int | None) -> None:
    channel = Taking(at_once)
    large = bytes(range(256)) * 1000
    assert _written(loop, channel, b"first", large, b"then", b"last") == len(large) + 13
    assert channel.taken == b"first" + large + b"thenlast"
    assert channel.threads.count("streams") == (0 if at_once is None else 1)


def test_input_of_a_process_that_reads_no_more_is_dropped(loop: Loop) -> None:
    channel = Taking(at_once=0)
    assert _written(loop, channel, b"first", b"last") == 9
    assert channel.taken == b""


def test_output_that_the_status_overtook_is_passed_on(loop: Loop) -> None:
    assert _served(loop, Terminal(b"the last", b" words")) == (b"the last words", STATUS)


def test_a_terminal_that_others_keep_open_is_over_once_it_is_quiet(loop: Loop) -> None:
    assert _served(loop, Terminal(b"the last words", kept_open=True)) == (b"the last words", STATUS)
