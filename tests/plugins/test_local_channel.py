"""Local channels: no descriptor leaks if too few are free or is closed twice, and no input waits for who has ended."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from connmgr.errors import ShellStartFailed
from connmgr.plugin import Channel, Pty
from connmgr.testing.link import WAIT_SECONDS
from connmgr_local.channel import LocalChannel
from connmgr_local.transport import LocalTransport

ROOT = Path(__file__).parents[2]
ENOUGH = 16
"""Free descriptors that suffice for a channel and the start of its process."""


def held() -> set[str]:
    return set(os.listdir("/dev/fd"))  # noqa: PTH208 - pathlib follows each entry


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """Limit this process to ``count`` descriptors more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, held())) + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_with_too_few(pty: Pty | None) -> None:
    """Open channels while ever more descriptors are free; none of them may leave one behind."""
    transport, refused = LocalTransport(), 0
    # Python opens a few once, such as its source of random bytes.
    transport.open_channel(["/bin/sh", "-c", "exit"], pty=pty, timeout=WAIT_SECONDS).close()
    before = held()
    for count in range(1, ENOUGH):
        # The gaps below the highest descriptor are filled, so that the limit is what counts.
        gaps = [os.dup(0) for _ in range(max(map(int, before)) + 1 - len(before))]
        try:
            with few_descriptors(count), suppress(ShellStartFailed):
                refused += 1
                transport.open_channel(["/bin/sh", "-c", "exit"], pty=pty, timeout=WAIT_SECONDS).close()
                refused -= 1
        finally:
            for gap in gaps:
                os.close(gap)
        assert held() == before, f"with {count} free descriptors some were left behind"
    assert 0 < refused < ENOUGH - 1, refused


@pytest.mark.parametrize("pty", ["None", "Pty()"], ids=["pipes", "terminal"])
def test_a_channel_for_which_too_few_descriptors_are_free_leaves_none_behind(pty: str) -> None:
    # In a process of its own: what other tests have left would be closed meanwhile.
    program = f"from tests.plugins.test_local_channel import Pty, open_with_too_few; open_with_too_few({pty})"
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def channel() -> Iterator[LocalChannel]:
    transport = LocalTransport()
    opened = transport.open_channel(["/bin/cat"], timeout=WAIT_SECONDS)
    assert isinstance(opened, LocalChannel)
    yield opened
    transport.close()


class AskedTogether(threading.Event):
    """An event that two threads read before either continues."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)

    def is_set(self) -> bool:
        found = super().is_set()
        with suppress(threading.BrokenBarrierError):
            self._both.wait(1)
        return found


def test_two_who_close_at_once_close_each_descriptor_once(
    channel: LocalChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor)))
    monkeypatch.setattr(channel, "_closing", AskedTogether())
    failures: list[Exception] = []

    def end() -> None:
        try:
            channel.close()
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=end) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert not failures, "a channel that is closed already was closed again"
    assert len(closed) == len(set(closed)) == 5


@pytest.mark.parametrize("pty", [None, Pty()], ids=["pipes", "terminal"])
def test_the_end_of_input_of_a_closed_channel_touches_no_descriptor(pty: Pty | None) -> None:
    transport = LocalTransport()
    channel: Channel = transport.open_channel(["/bin/cat"], pty=pty, timeout=WAIT_SECONDS)
    channel.close()
    # These reuse the numbers of the channel's closed descriptors.
    reused = [end for _ in range(4) for end in os.pipe()]
    try:
        channel.shutdown_write()
        readers = reused[::2]
        for reader in readers:
            os.set_blocking(reader, False)
            with pytest.raises(BlockingIOError):
                os.read(reader, 1)
    finally:
        for end in reused:
            with suppress(OSError):
                os.close(end)


def test_input_does_not_wait_for_a_terminal_whose_program_has_ended(gate: Path) -> None:
    transport = LocalTransport()
    program = f"stty raw -echo; echo ready; read line <{gate}"
    channel = transport.open_channel(["/bin/sh", "-c", program], pty=Pty(), timeout=WAIT_SECONDS)
    try:
        shown = b""
        while b"ready" not in shown:
            shown += channel.recv(WAIT_SECONDS)[0]
        with suppress(TimeoutError):
            while True:
                channel.send_now(bytes(1 << 12))
        gate.write_text("\n")
        assert channel.exit_status(WAIT_SECONDS) == 0
        with pytest.raises(OSError) as caught:  # noqa: PT011 - which one depends on the room that the system has made
            channel.sendall(bytes(1 << 20), WAIT_SECONDS)
        assert not isinstance(caught.value, TimeoutError), "it waited for a program that has ended"
    finally:
        transport.close()
