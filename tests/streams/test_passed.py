"""Descriptors that another program has passed: nothing blocks the loop, and others who share them notice nothing."""

from __future__ import annotations

import fcntl
import os
import pty
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from connmgr.streams.endpoints import Outcome
from connmgr.streams.frames import DATA, STDERR
from connmgr.streams.loop import Loop
from connmgr.streams.passed import FILE_QUEUE_BYTES, PIPE_BYTES, QUEUE_BYTES, PassedEndpoint, fault_of, size_of
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal


class Report:
    """Notes what an endpoint reports."""

    def __init__(self) -> None:
        self.data, self.took, self.outcomes = bytearray(), 0, list[Outcome]()
        self.has_ended = threading.Event()
        self.is_over = threading.Event()

    def arrived(self, data: bytes | memoryview, kind: int = DATA) -> None:
        self.data += data

    def taken(self, size: int) -> None:
        self.took += size

    def ended(self) -> None:
        self.has_ended.set()

    def over(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.is_over.set()


@pytest.fixture
def loop() -> Iterator[Loop]:
    running = Loop("test")
    yield running
    running.close(DEADLINE_SECONDS)


def begun(loop: Loop, source: int, out: int, err: int | None = None) -> tuple[PassedEndpoint, Report, threading.Event]:
    """Return an endpoint that reads, what it reports, and an event at its release."""
    report, made, released = Report(), list[PassedEndpoint](), threading.Event()

    def make() -> None:
        endpoint = PassedEndpoint(loop, source, out, err, released=released.set)
        made.append(endpoint)
        endpoint.begin(report)

    loop.call(make)
    eventually(lambda: made, "it does not come")
    return made[0], report, released


def nothing() -> int:
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def is_alive(loop: Loop) -> bool:
    """Whether the loop makes calls, and so does not wait for anything."""
    made = threading.Event()
    loop.call(made.set)
    return made.wait(DEADLINE_SECONDS)


def both_ends(kind: str, tmp_path: Path) -> tuple[int, int]:
    """Return a descriptor to read from, and one to write to."""
    if kind == "pipe":
        return os.pipe()
    if kind == "socket":
        ours, theirs = socket.socketpair()
        return ours.detach(), theirs.detach()
    if kind == "terminal":
        master, slave = pty.openpty()
        import tty

        tty.setraw(slave)
        return slave, master
    path = tmp_path / "file"
    path.touch()
    return os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells and changes the size of a pipe")
def test_a_pipe_that_carries_much_gets_more_room(loop: Loop) -> None:
    for size, grows in ((1000, False), (PIPE_BYTES // 4, True)):
        source, into = os.pipe()
        # An endpoint closes what it was passed.
        kept, room = os.dup(source), fcntl.fcntl(source, fcntl.F_GETPIPE_SZ)
        os.write(into, bytes(size))
        report = begun(loop, source, nothing())[1]
        os.close(into)
        assert report.has_ended.wait(DEADLINE_SECONDS)
        assert len(report.data) == size
        assert (fcntl.fcntl(kept, fcntl.F_GETPIPE_SZ) > room) == (grows and room < PIPE_BYTES)
        os.close(kept)


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal", "file"])
def test_what_is_written_is_read(loop: Loop, tmp_path: Path, kind: str) -> None:
    source, into = both_ends(kind, tmp_path)
    content = os.urandom(3_000 if kind == "terminal" else 300_000)
    if kind == "file":
        os.write(into, content)
    endpoint, report, released = begun(loop, source, nothing())
    if kind != "file":
        threading.Thread(target=lambda: _write(into, content), daemon=True).start()
    eventually(lambda: len(report.data) == len(content), "it does not come")
    assert bytes(report.data) == content
    os.close(into)
    assert report.has_ended.wait(DEADLINE_SECONDS)
    loop.call(endpoint.close)
    assert released.wait(DEADLINE_SECONDS)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(source)


def _write(into: int, content: bytes) -> None:
    sent = 0
    while sent < len(content):
        sent += os.write(into, content[sent : sent + 4096])


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal", "file"])
def test_output_is_written_in_order_and_then_it_is_over(loop: Loop, tmp_path: Path, kind: str) -> None:
    source, into = both_ends(kind, tmp_path)
    if kind == "terminal":
        source, into = into, source
    pieces = [os.urandom(1000) for _ in range(3 if kind == "terminal" else 300)]
    endpoint, report, _ = begun(loop, nothing(), into)
    for piece in pieces:
        loop.call(lambda piece=piece: endpoint.write(piece))  # type: ignore[misc]
    loop.call(lambda: endpoint.finish(0))
    got = bytearray()
    expected = b"".join(pieces)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(got) < len(expected):
        assert time.monotonic() < deadline
        got += os.read(source, 65536)
    assert bytes(got) == expected
    assert report.is_over.wait(DEADLINE_SECONDS)
    assert report.outcomes == [0]
    assert report.took <= len(expected)
    os.close(source)


def test_a_rival_that_is_faster_does_not_block_the_loop(loop: Loop) -> None:
    """Two programs read one pipe: a read that comes too late must not wait for more."""
    source, into = os.pipe()
    rival = os.dup(source)
    endpoint, report, released = begun(loop, source, nothing())
    os.set_blocking(rival, True)
    stolen = bytearray()

    def steal() -> None:
        with suppress(OSError):
            while data := os.read(rival, 1):
                stolen.extend(data)

    threading.Thread(target=steal, daemon=True).start()
    for number in range(3000):
        os.write(into, b"%d" % (number % 10))
    assert is_alive(loop)
    os.close(into)
    assert report.has_ended.wait(DEADLINE_SECONDS)
    eventually(lambda: len(stolen) + len(report.data) == 3000, "it does not come")
    loop.call(endpoint.close)
    assert released.wait(DEADLINE_SECONDS)


def test_a_reader_that_never_comes_holds_nobody(loop: Loop) -> None:
    """A terminal that is stopped, or a pipe that is full: the loop goes on, and closing frees everything."""
    reading, full = os.pipe()
    master, slave = pty.openpty()
    for out in (full, os.dup(master)):
        endpoint, _, released = begun(loop, nothing(), out)
        for _ in range(40):
            loop.call(lambda: endpoint.write(b"x" * 65536))  # noqa: B023 - called before the next round
        eventually(lambda: endpoint.is_full, "it does not come")  # noqa: B023
        assert is_alive(loop)
        loop.call(endpoint.close)
        assert released.wait(DEADLINE_SECONDS)
    for descriptor in (reading, master, slave):
        os.close(descriptor)


def test_a_paused_endpoint_reads_no_further(loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5_000_000)
    source = os.open(tmp_path / "file", os.O_RDONLY)
    report, made = Report(), list[PassedEndpoint]()

    def make() -> None:
        made.append(PassedEndpoint(loop, source, nothing(), released=lambda: None))
        made[0].begin(report)
        made[0].pause()

    loop.call(make)
    eventually(lambda: made, "it does not come")
    assert is_alive(loop)
    time.sleep(0.1)
    assert not report.data
    loop.call(made[0].resume)
    assert report.has_ended.wait(DEADLINE_SECONDS)
    assert len(report.data) == 5_000_000
    loop.call(made[0].close)


def test_a_file_takes_more_pieces_than_one_call_to_the_system_does(loop: Loop, tmp_path: Path) -> None:
    out = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT, 0o600)
    endpoint, report, _ = begun(loop, nothing(), out)
    pieces = [f"{number};".encode() * (1 + number % 7) for number in range(5_000)]

    def write() -> None:
        for piece in pieces:
            endpoint.write(piece)

    loop.call(write)
    eventually_equal(lambda: report.took, len(b"".join(pieces)), "it does not take all")
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    loop.call(endpoint.close)


def test_a_file_is_full_later_than_a_pipe_beside_it(loop: Loop, tmp_path: Path) -> None:
    out = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT, 0o600)
    err_read, err = os.pipe()
    endpoint, report, _ = begun(loop, nothing(), out, err)
    piece, fullness, written = b"x" * (QUEUE_BYTES + 1), list[bool](), threading.Event()

    def write(data: bytes, kind: int = DATA) -> None:
        endpoint.write(data, kind)
        fullness.append(endpoint.is_full)

    def write_all() -> None:
        # Within one call, because the thread that writes to the file begins after it.
        write(piece)
        write(b"x" * FILE_QUEUE_BYTES)
        written.set()

    loop.call(write_all)
    assert written.wait(DEADLINE_SECONDS)
    assert fullness == [False, True]
    size = len(piece) + FILE_QUEUE_BYTES
    eventually_equal(lambda: report.took, size, "it does not take all")
    loop.call(lambda: write(piece, STDERR))
    eventually_equal(lambda: fullness, [False, True, True], "the pipe is not full")
    assert (tmp_path / "file").stat().st_size == size
    loop.call(endpoint.close)
    os.close(err_read)


def test_errors_come_after_the_output_and_have_their_own_place(loop: Loop) -> None:
    out_read, out = os.pipe()
    err_read, err = os.pipe()
    endpoint, report, _ = begun(loop, nothing(), out, err)
    loop.call(lambda: endpoint.write(b"out"))
    loop.call(lambda: endpoint.write(b"err", STDERR))
    loop.call(lambda: endpoint.finish(5))
    assert report.is_over.wait(DEADLINE_SECONDS)
    assert (os.read(out_read, 10), os.read(err_read, 10), report.outcomes) == (b"out", b"err", [5])
    os.close(out_read)
    os.close(err_read)


def test_a_reader_that_is_gone_ends_it(loop: Loop) -> None:
    reading, writing = os.pipe()
    endpoint, report, _ = begun(loop, nothing(), writing)
    os.close(reading)
    loop.call(lambda: endpoint.write(b"x"))
    assert report.is_over.wait(DEADLINE_SECONDS)
    assert isinstance(report.outcomes[0], BrokenPipeError)


def test_what_is_no_stream_is_named(tmp_path: Path) -> None:
    directory, null = os.open(tmp_path, os.O_RDONLY), nothing()
    assert fault_of([null, null, null]) is None
    assert fault_of([null, directory, null]) == "The standard output is a directory."
    event = os.eventfd(0) if hasattr(os, "eventfd") else null
    if event != null:
        assert fault_of([event, null]) == "The standard input is of no kind that carries bytes."
        os.close(event)
    assert size_of(null) is None
    assert QUEUE_BYTES > 65536
    os.close(directory)
    os.close(null)
