"""Hostile output around the marks of a command costs little time and memory, or ends the session."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from connmgr.cancellation import NEVER
from connmgr.engine.envelope import COUNTED_BYTES, STATE_BYTES, UNCOUNTED_BYTES, Command, MarkedStream, UnknownMark
from connmgr.engine.running import Limits, RunningCommand
from connmgr.engine.start import start_supervisor
from connmgr.errors import ShellLost, ShellStartFailed
from tests.engine.shells import local_session, run
from tests.hostile import SIZE, Prints, fill, quickly
from tests.plugins.faulty_types import Delegate, Link

NONCE = "0123456789abcdef" * 2
MARK = f":{NONCE}".encode()
PIECE = 32 << 10


def feed(stream: MarkedStream, data: bytes, piece: int = PIECE) -> None:
    for start in range(0, len(data), piece):
        stream.parse(data[start : start + piece])


FLOODS = [b"x", b":", MARK[:-1], b":" + MARK[:-1], b"\n", b"\0"]


@pytest.mark.parametrize("pattern", FLOODS)
@pytest.mark.parametrize("mark", [b"", b"c\n", b"c\n%sv\n" % MARK, b"c\n%sv\n%sx\n" % (MARK, MARK)])
def test_sixteen_megabytes_of_a_stream_are_read_in_linear_time_and_bounded_memory(pattern: bytes, mark: bytes) -> None:
    data = (MARK + mark if mark else b"") + fill(pattern)
    stream = MarkedStream(NONCE, 1 << 20)
    tracemalloc.start()
    feed(stream, data[: 2 << 20])
    before = tracemalloc.get_traced_memory()[0]
    feed(stream, data[2 << 20 : 4 << 20])
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 64 << 10, f"{grown} bytes more are held of a stream whose output and state are full"
    with quickly():
        feed(stream, data[4 << 20 :])


NO_MARKS = [
    "y",
    "cc",
    " zz",
    " ",
    " -5",
    " +5",
    " 1_0",
    " 5x",
    " 5c",
    "\x00",
    "é",
    "b",
    "\r\r",
    " " + "9" * 6000,
    "x" * SIZE,
]


@pytest.mark.parametrize("tag", NO_MARKS, ids=lambda tag: ascii(tag[:8]))
@pytest.mark.parametrize("piece", [1, PIECE])
def test_a_malformed_mark_makes_the_state_unknown(tag: str, piece: int) -> None:
    stream = MarkedStream(NONCE, 1000)
    with pytest.raises(UnknownMark), quickly():
        feed(stream, b"output" + MARK + tag.encode() + b"\n", piece)


@pytest.mark.parametrize("tags", ["v", "x", "c c", "c x", "c v v", "c v x x", "g c", "g g", "l c", "c g", ""])
def test_marks_out_of_their_order_mean_an_unknown_state(tags: str) -> None:
    with pytest.raises(UnknownMark):
        feed(MarkedStream(NONCE, 1000), b"".join(MARK + tag.encode() + b"\n" for tag in tags.split(" ")))


@pytest.mark.parametrize("tag", ["c", "g", "x", " 0"])
def test_stderr_has_but_a_bare_end(tag: str) -> None:
    with pytest.raises(UnknownMark):
        feed(MarkedStream(NONCE, 1000, stderr=True), MARK + tag.encode() + b"\n")


@pytest.mark.parametrize("tag", ["", "\r"])
def test_the_end_of_stderr_is_found(tag: str) -> None:
    stream = MarkedStream(NONCE, 1000, stderr=True)
    feed(stream, b"error" + MARK + tag.encode() + b"\n", 1)
    assert (stream.ended, bytes(stream.output)) == (True, b"error")


class Room:
    """Memory for so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def take(self, size: int) -> bool:
        assert size == COUNTED_BYTES
        self.steps -= 1
        return self.steps >= 0


END = MARK + b"c\n" + MARK + b"v\n" + MARK + b"x\n" + MARK + b" 0\n"


def test_output_is_kept_as_far_as_there_is_memory() -> None:
    printed, most = fill(b"x", 3 << 20), UNCOUNTED_BYTES + COUNTED_BYTES
    for limit, steps, kept in ((16 << 20, 1, most), (16 << 20, 9, 3 << 20), (1000, 0, 1000), (2 << 20, 2, 2 << 20)):
        stream = MarkedStream(NONCE, limit, Room(steps))
        feed(stream, printed + END)
        assert stream.ended
        assert (len(stream.output), stream.truncated) == (kept, kept < len(printed))


def test_output_that_is_passed_on_takes_no_memory() -> None:
    stream, passed = MarkedStream(NONCE, 16 << 20, Room(0)), 0
    for _ in range(64):
        feed(stream, fill(b"x", 64 << 10))
        passed += len(stream.take())
    assert (passed, stream.truncated) == (4 << 20, False)


def test_a_directory_too_long_is_not_kept() -> None:
    stream = MarkedStream(NONCE, 1000)
    feed(stream, MARK + b"c\n" + fill(b"/d", STATE_BYTES) + MARK + b"v\n" + MARK + b"x\n" + MARK + b" 0\n")
    assert stream.ended
    assert stream.state is None


class Garbles(Delegate):
    """Replaces the shell's reported status by ``tag`` after ``first`` texts were sent."""

    tag = b""
    first = 1
    commands = 0

    def sendall(self, data: bytes, timeout: float) -> None:
        self.commands += 1
        super().sendall(data, timeout)

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        out, err = super().recv(timeout)
        if self.commands > self.first:
            out = out.replace(b" 0\n", self.tag + b"\n")
        return out, err


def garbling(tag: bytes, first: int) -> Link:
    return Link(type("Garbling", (Garbles,), {"tag": tag, "first": first}))


@pytest.mark.parametrize("tag", [b"zz", b" zz", b" -5", b" " + b"9" * 6000])
def test_a_mark_that_a_command_cannot_end_with_loses_the_session(tag: bytes) -> None:
    with local_session("sh", transport=garbling(tag, 1)) as session:
        with pytest.raises(ShellLost):
            run(session, "true")
        assert not session.alive
        with pytest.raises(ShellLost):
            run(session, "true")


@pytest.mark.parametrize("tag", [b"zz", b" -5"])
def test_a_mark_that_a_greeting_cannot_end_with_fails_the_start(tag: bytes) -> None:
    transport = garbling(tag, 0)
    try:
        with pytest.raises(ShellStartFailed, match="did not describe itself"):
            start_supervisor(transport, "sh", 10)
    finally:
        transport.close()


@pytest.mark.parametrize("pid", ["²", "9" * 6000, "0", "-1", "1_0", ""])
def test_a_number_that_no_process_has_fails_the_start(pid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Link(Greets)
    monkeypatch.setattr(Greets, "pid", pid.encode())
    try:
        with pytest.raises(ShellStartFailed, match="did not describe itself"):
            start_supervisor(transport, "sh", 10)
    finally:
        transport.close()


class Greets(Delegate):
    """Reports a wrong process id for its shell."""

    pid = b""

    def sendall(self, data: bytes, timeout: float) -> None:
        greeting = b'echo "facts '
        head, _, rest = data.partition(greeting)
        nonce, _, rest = rest.partition(b" $$")
        super().sendall(head + greeting + nonce + b" " + self.pid + rest if rest else data, timeout)


def test_a_flood_on_both_streams_is_read_in_linear_time() -> None:
    flood = fill(MARK[:-1])
    # The end of the link is not under test here.
    session: Any = SimpleNamespace(guarded=nullcontext)
    limits = Limits(timeout=60, max_output=1 << 20, cancellation=NEVER)
    running = RunningCommand(session, Prints(flood, flood), Command(b""), NONCE, "cookie", limits)
    with quickly(), pytest.raises(EOFError):
        running.result()
