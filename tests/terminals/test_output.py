"""The end of a terminal's output is kept, the screen is computed on demand, and recordings are limited."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.api.auth import MAX_TICKETS, TICKET_SECONDS, Caller, Tickets
from connmgr.computing import Computing, Pace
from connmgr.contract.terminal import RUNNING
from connmgr.errors import InvalidToken, RecordingFailed
from connmgr.links.link import Lease
from connmgr.pipes.streams import Streams
from connmgr.plugin import Channel
from connmgr.secrets.principals import Access
from connmgr.terminals.emulator.screen import Screen
from connmgr.terminals.output import BACKLOG_BYTES, Ring, TerminalOutput
from connmgr.terminals.recording import DAY_SECONDS, STEP_BYTES, Recording, Recordings
from connmgr.terminals.terminal import Origin, Terminal
from tests.clock import Clock
from tests.deadlines import DEADLINE_SECONDS, eventually

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
    recordings = Recordings(tmp_path / "recordings", limit=2000, total=1 << 20, days=0)
    recording = recordings.begin("one", 80, 24, "xterm")
    for _ in range(100):
        recording.output(b"\xc3\xa4" * 20)
    recording.resized(9, 9)
    assert recording.cut == "limit"
    content = (tmp_path / "recordings" / "one.cast").read_bytes()
    assert 1900 < len(content) <= 2000
    assert all(json.loads(line) for line in content.decode().splitlines())


def test_a_recording_has_what_a_program_printed_last(tmp_path: Path) -> None:
    recording = Recordings(tmp_path, limit=2000, total=1 << 20, days=0).begin("one", 80, 24, "xterm")
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


def test_stderr_of_a_server_counts_as_output(tmp_path: Path) -> None:
    streams, output = Streams(Computing(), Pace()), TerminalOutput(80, 24)
    recording = Recordings(tmp_path, limit=2000, total=1 << 20, days=0).begin("one", 80, 24, "xterm")
    origin = Origin("one", "connection", None, None, "xterm", datetime.now(timezone.utc))
    lease = cast(Lease, None)
    try:
        terminal = Terminal(streams, origin, output, lease, _Apart(), b"early ", recording, lambda _: None)
        assert terminal.wait(DEADLINE_SECONDS)
    finally:
        streams.close(DEADLINE_SECONDS)
    assert output.read(0, 100) == (0, b"early out err")
    assert "out err" in (tmp_path / "one.cast").read_text()


def test_a_terminal_that_shows_as_ended_has_recorded_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, made, states = Streams(Computing(), Pace()), queue.Queue[Terminal](), list[str]()
    recording = Recordings(tmp_path, limit=2000, total=1 << 20, days=0).begin("one", 80, 24, "xterm")
    close = recording.close

    def closing() -> None:
        states.append(made.get(timeout=DEADLINE_SECONDS).state)
        close()

    monkeypatch.setattr(recording, "close", closing)
    origin = Origin("one", "connection", None, None, "xterm", datetime.now(timezone.utc))
    lease = cast(Lease, None)
    try:
        made.put(Terminal(streams, origin, TerminalOutput(80, 24), lease, _Apart(), b"", recording, lambda _: None))
        eventually(lambda: states, "the recording is not closed")
    finally:
        streams.close(DEADLINE_SECONDS)
    assert states == [RUNNING]


def test_a_full_disk_ends_a_recording_and_nothing_else(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, limit=1 << 20, total=1 << 30, days=0)
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
    with pytest.raises(RecordingFailed, match="file cannot be created"):
        Recordings(tmp_path / "recordings", limit=1000, total=1 << 20, days=0).begin("one", 80, 24, "xterm")


def test_old_recordings_are_removed(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, limit=1000, total=1 << 20, days=2)
    for name, age in (("old", 2.1), ("young", 1.9)):
        recordings.begin(name, 80, 24, "xterm").close()
        at = time.time() - age * DAY_SECONDS
        os.utime(tmp_path / f"{name}.cast", (at, at))
    (tmp_path / "other").write_text("no recording")
    os.utime(tmp_path / "other", (0, 0))
    recordings.begin("new", 80, 24, "xterm").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.cast", "other", "young.cast"]


def _recorded(recordings: Recordings, name: str, holder: str | None = None, size: int = 900) -> Recording:
    """Return the recording ``name``, which still runs and has asked for all its bytes."""
    recording = recordings.begin(name, 80, 24, "xterm", holder)
    recording.output(b"x" * (size - 200))
    return recording


def _ended(recordings: Recordings, directory: Path, name: str, age: float, holder: str | None = None) -> None:
    _recorded(recordings, name, holder).close()
    at = time.time() - age
    os.utime(directory / f"{name}.cast", (at, at))


def _names(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.cast"))


def test_the_oldest_ended_recordings_make_room_for_new_ones(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, limit=1000, total=3500, days=0)
    running = _recorded(recordings, "running")
    os.utime(tmp_path / "running.cast", (0, 0))
    for name, age in (("older", 20.0), ("oldest", 30.0)):
        _ended(recordings, tmp_path, name, age)
    assert _names(tmp_path) == ["older", "oldest", "running"]
    _recorded(recordings, "new").close()
    assert _names(tmp_path) == ["new", "older", "running"]
    running.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3500


def test_recordings_of_running_terminals_are_not_removed_for_another(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, limit=1000, total=2500, days=0)
    running = [_recorded(recordings, name) for name in ("one", "two")]
    with pytest.raises(RecordingFailed, match="no room for another"):
        recordings.begin("three", 80, 24, "xterm")
    assert _names(tmp_path) == ["one", "two"]
    running[0].close()
    _recorded(recordings, "three").close()
    running[1].close()
    assert "three" in _names(tmp_path)


def test_a_growing_recording_removes_ended_ones_and_is_cut_when_there_are_none(tmp_path: Path) -> None:
    limit = 3 * STEP_BYTES
    recordings = Recordings(tmp_path, limit=limit, total=limit, days=0)
    _ended(recordings, tmp_path, "ended", 10)
    growing, other = (recordings.begin(name, 80, 24, "xterm") for name in ("growing", "other"))
    growing.output(b"x" * 1000)
    assert _names(tmp_path) == ["ended", "growing", "other"]
    for _ in range(5):
        growing.output(b"x" * (STEP_BYTES // 2))
    assert growing.cut == "limit"
    assert _names(tmp_path) == ["growing", "other"]
    other.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit


def test_a_token_s_recordings_remove_only_its_own_and_have_a_share(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, limit=1000, total=8000, days=0)
    _ended(recordings, tmp_path, "owner", 99)
    _ended(recordings, tmp_path, "stranger", 98, "another")
    for number in range(6):
        _ended(recordings, tmp_path, f"own{number}", 50.0 - number, "token")
    # Its share is five eighths; the oldest of its own have gone. A daemon that was restarted knows whose they are.
    assert _names(tmp_path) == ["own1", "own2", "own3", "own4", "own5", "owner", "stranger"]
    again = Recordings(tmp_path, limit=1000, total=8000, days=0)
    _recorded(again, "own6", "token").close()
    assert _names(tmp_path) == ["own2", "own3", "own4", "own5", "own6", "owner", "stranger"]
    for number in range(3):
        _ended(again, tmp_path, f"newer{number}", 10.0 - number)
    assert "owner" not in _names(tmp_path), "the owner's remove any, the oldest first"


def test_tickets_expire_and_are_limited(clock: Clock) -> None:
    tickets, caller = Tickets(clock=clock), Caller("somebody", Access(), 0.0)
    good = tickets.issue("terminal", caller)
    assert tickets.redeem(good, "terminal") is caller
    late = tickets.issue("terminal", caller)
    clock.now += TICKET_SECONDS
    with pytest.raises(InvalidToken):
        tickets.redeem(late, "terminal")
    first = tickets.issue("terminal", caller)
    for _ in range(MAX_TICKETS):
        last = tickets.issue("terminal", caller)
    with pytest.raises(InvalidToken):
        tickets.redeem(first, "terminal")
    assert tickets.redeem(last, "terminal") is caller
