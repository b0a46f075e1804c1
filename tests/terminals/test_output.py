"""The end of a terminal's output is kept, the screen is computed on demand, and recordings are limited."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.api.auth import Caller
from connmgr.api.tickets import MAX_TICKETS, TICKET_SECONDS, Tickets
from connmgr.errors import InvalidToken, RecordingFailed
from connmgr.links.link import Lease
from connmgr.pipes.streams import Streams
from connmgr.plugin import Channel
from connmgr.secrets.principals import Access
from connmgr.terminals.emulator.screen import Screen
from connmgr.terminals.output import BACKLOG_BYTES, Ring, TerminalOutput
from connmgr.terminals.recording import DAY_SECONDS, Recordings
from connmgr.terminals.terminal import Origin, Terminal
from tests.deadlines import DEADLINE_SECONDS

SETS_MODES = b"\x1b[?1049h\x1b[?1h\x1b[?1006;1000h\x1b[?2004h\x1b=\x1b[?25l\x1b]2;a title\x07\x1b[5;9r"


def filled(output: TerminalOutput, size: int, line: bytes = b"y\r\n") -> None:
    block = line * (30_000 // len(line))
    for _ in range(size // len(block) + 1):
        output.append(block)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(1, 100))
def test_a_ring_keeps_at_least_the_last_bytes(pieces: list[bytes], kept: int) -> None:
    ring, whole = Ring(kept), b"".join(pieces)
    for piece in pieces:
        ring.append(piece)
    assert ring.end == len(whole)
    assert ring.start <= max(0, len(whole) - kept)
    for offset in range(ring.start, ring.end + 1):
        assert ring.read(offset, 7) == whole[offset : offset + 7]


def test_modes_set_in_skipped_output_apply() -> None:
    output = TerminalOutput(80, 24)
    output.append(SETS_MODES)
    filled(output, 10 << 20)
    with output.look() as (screen, offset):
        assert offset == output.end
        assert screen.modes >= {1, 1000, 1006, 2004, 7}
        assert 25 not in screen.modes
        assert (screen.keypad, screen.title, screen.top, screen.bottom) == (True, "a title", 4, 8)
        assert screen.primary is not None
        assert screen.grid.lines[:9] == [""] * 4 + ["y"] * 4 + [""]


def test_the_last_setting_in_skipped_output_applies() -> None:
    output = TerminalOutput(80, 24)
    output.append(SETS_MODES)
    filled(output, 1 << 20)
    output.append(b"\x1b[?1049l\x1b[?1l\x1b[?25h\x1b>\x1b]0;other\x1b\\\x1b[r")
    filled(output, 1 << 20)
    with output.look() as (screen, _):
        assert screen.modes >= {25, 2004}
        assert 1 not in screen.modes
        assert (screen.keypad, screen.title, screen.top, screen.bottom) == (False, "other", 0, 23)
        assert screen.primary is None


def test_a_sequence_across_two_pieces_is_found() -> None:
    for cut in range(1, 8):
        output = TerminalOutput(80, 24)
        output.append(b"y\r\n" * ((BACKLOG_BYTES // 2) // 3) + b"y" * cut + b"\x1b[?2004h")
        filled(output, 4 << 20)
        with output.look() as (screen, _):
            assert 2004 in screen.modes


def test_short_output_is_processed_whole() -> None:
    output, screen = TerminalOutput(80, 24), Screen(80, 24)
    for number in range(2000):
        piece = f"\x1b[{number % 24 + 1};{number % 80 + 1}H\x1b[3{number % 8}mx".encode()
        output.append(piece)
        screen.take(piece)
    with output.look() as (seen, _):
        assert [(row.text, row.styles) for row in seen.grid.rows] == [
            (row.text, row.styles) for row in screen.grid.rows
        ]


def test_resizes_take_effect_at_their_place_in_the_output() -> None:
    output = TerminalOutput(10, 4)
    output.append(b"0123456789ab")
    output.resize(20, 4)
    output.append(b"\r\n0123456789ab")
    for number in range(10_000):
        output.resize(5 + number % 3, 4)
    with output.look() as (screen, _):
        assert (screen.columns, screen.rows) == (5, 4)
        assert screen.grid.lines[:3] == ["01234", "ab", "01234"]
    for number in range(10_000):
        output.append(b"x")
        output.resize(5 + number % 3, 4)
    with output.look() as (screen, _):
        assert screen.columns == 5


def test_a_look_after_much_output_is_quick_and_appending_is_cheap() -> None:
    output = TerminalOutput(80, 24)
    began = time.thread_time()
    filled(output, 100 << 20)
    appended = time.thread_time() - began
    began = time.thread_time()
    with output.look() as (screen, _):
        assert screen.grid.lines[0] == "y"
    # 0.05 s and 0.14 s on an idle machine.
    assert appended < 2, f"100 MiB took {appended:.2f} s"
    assert time.thread_time() - began < 1


def test_appending_does_not_wait_for_a_look() -> None:
    output = TerminalOutput(80, 24)
    filled(output, 1 << 20)
    with output.look():
        appended = threading.Event()

        def append() -> None:
            filled(output, 4 << 20)
            appended.set()

        threading.Thread(target=append, daemon=True).start()
        assert appended.wait(20), "output waits for a look at the screen"


def test_a_recording_ends_at_its_limit(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path / "recordings", limit=2000, days=0)
    recording = recordings.begin("one", 80, 24, "xterm")
    for _ in range(100):
        recording.output(b"\xc3\xa4" * 20)
    recording.resized(9, 9)
    assert recording.cut == "limit"
    content = (tmp_path / "recordings" / "one.cast").read_bytes()
    assert 1900 < len(content) <= 2000
    assert all(json.loads(line) for line in content.decode().splitlines())


def test_a_recording_has_what_a_program_printed_last(tmp_path: Path) -> None:
    recording = Recordings(tmp_path, limit=2000, days=0).begin("one", 80, 24, "xterm")
    recording.output(b"a\xc3")
    recording.close()
    recording.close()
    lines = (tmp_path / "one.cast").read_text().splitlines()
    assert [json.loads(line)[2] for line in lines[1:]] == ["a", "\N{REPLACEMENT CHARACTER}"]


class _Apart(Channel):
    """A program on a terminal whose server sends messages of its own on the stream of standard error."""

    merged = True

    def __init__(self) -> None:
        self._rest = [(b"out ", b"err")]

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if not self._rest:
            raise EOFError
        return self._rest.pop()

    def exit_status(self, timeout: float) -> int:
        return 0

    def sendall(self, data: bytes, timeout: float) -> None: ...
    def shutdown_write(self) -> None: ...
    def close(self) -> None: ...


def test_what_a_server_sends_apart_is_output_too(tmp_path: Path) -> None:
    streams, output = Streams(), TerminalOutput(80, 24)
    recording = Recordings(tmp_path, limit=2000, days=0).begin("one", 80, 24, "xterm")
    origin = Origin("one", "connection", None, None, "xterm", datetime.now(timezone.utc))
    lease = cast(Lease, None)
    try:
        terminal = Terminal(streams, origin, output, lease, _Apart(), b"early ", recording, lambda _: None)
        assert terminal.wait(DEADLINE_SECONDS)
    finally:
        streams.close(DEADLINE_SECONDS)
    assert output.read(0, 100) == (0, b"early out err")
    assert "out err" in (tmp_path / "one.cast").read_text()


def test_a_full_disk_ends_a_recording_and_nothing_else(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, limit=1 << 20, days=0)
    recording = recordings.begin("one", 80, 24, "xterm")
    # Every write to this device fails, as on a full disk.
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recording.fileno)
    os.close(full)
    for _ in range(1000):
        recording.output(b"x" * 100)
    recording.flush()
    assert recording.cut == "error"
    recording.output(b"more")
    recording.resized(1, 1)
    recording.close()
    assert recording.cut == "error"


def test_a_recording_that_cannot_be_begun(tmp_path: Path) -> None:
    (tmp_path / "recordings").write_text("in the way")
    with pytest.raises(RecordingFailed, match="cannot be begun"):
        Recordings(tmp_path / "recordings", limit=1000, days=0).begin("one", 80, 24, "xterm")


def test_old_recordings_are_removed(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, limit=1000, days=2)
    for name, age in (("old", 2.1), ("young", 1.9)):
        recordings.begin(name, 80, 24, "xterm").close()
        at = time.time() - age * DAY_SECONDS
        os.utime(tmp_path / f"{name}.cast", (at, at))
    (tmp_path / "other").write_text("no recording")
    os.utime(tmp_path / "other", (0, 0))
    recordings.begin("new", 80, 24, "xterm").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.cast", "other", "young.cast"]


def test_tickets_expire_and_are_limited() -> None:
    now = [0.0]
    tickets, caller = Tickets(clock=lambda: now[0]), Caller("somebody", Access(), 0.0)
    good = tickets.issue("terminal", caller)
    assert tickets.redeem(good, "terminal") is caller
    late = tickets.issue("terminal", caller)
    now[0] += TICKET_SECONDS
    with pytest.raises(InvalidToken):
        tickets.redeem(late, "terminal")
    first = tickets.issue("terminal", caller)
    for _ in range(MAX_TICKETS):
        last = tickets.issue("terminal", caller)
    with pytest.raises(InvalidToken):
        tickets.redeem(first, "terminal")
    assert tickets.redeem(last, "terminal") is caller
