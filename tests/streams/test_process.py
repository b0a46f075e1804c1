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


def test_output_that_the_status_overtook_is_passed_on(loop: Loop) -> None:
    assert _served(loop, Terminal(b"the last", b" words")) == (b"the last words", STATUS)


def test_a_terminal_that_others_keep_open_is_over_once_it_is_quiet(loop: Loop) -> None:
    assert _served(loop, Terminal(b"the last words", kept_open=True)) == (b"the last words", STATUS)
