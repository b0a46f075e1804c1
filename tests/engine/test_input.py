"""Input that arrives while its command runs: to its end, broken off, unread, and after the command's end.

The tests run over every transport too (tests/engine/test_transports.py).
"""

from __future__ import annotations

import os
import queue
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from connmgr.engine import stdin_pipe
from connmgr.engine.envelope import Command
from connmgr.engine.session import Session
from connmgr.errors import ChannelRefused, CommandCancelled, NoSuchDirectory
from connmgr.plugin import Channel, Deadline, Pty
from tests.deadlines import DEADLINE_SECONDS
from tests.engine.shells import assert_usable, local_session, out, run
from tests.plugins.faulty_types import Delegate, Link

BINARY = bytes(range(256)) * 4096


class Arriving:
    """Pieces that a test puts in while the command runs."""

    def __init__(self, *pieces: bytes) -> None:
        self.failed = False
        self.size = 0
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for piece in pieces:
            self.put(piece)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces.get, None)

    def put(self, piece: bytes) -> None:
        self._pieces.put(piece)

    def end(self) -> None:
        self._pieces.put(None)

    def break_off(self) -> None:
        self.failed = True
        self._pieces.put(None)

    def passed(self, size: int) -> None:
        self.size += size

    def stop(self) -> None:
        self.end()


class Endless(Arriving):
    """As many bytes as somebody takes."""

    def __init__(self) -> None:
        super().__init__()
        self._stopped = False

    def __iter__(self) -> Iterator[bytes]:
        while not self._stopped:
            yield BINARY

    def stop(self) -> None:
        self._stopped = True


def whole(*pieces: bytes) -> Arriving:
    source = Arriving(*pieces)
    source.end()
    return source


def test_a_command_reads_what_arrives_while_it_runs(any_shell: Session) -> None:
    source = Arriving(b"first\n")
    with any_shell.begin(Command(b"cat", arriving=source), DEADLINE_SECONDS) as running:
        events = running.events()
        assert next(events)[0] == b"first\n", "the input comes only at its end"
        source.put(BINARY)
        source.put(b"last")
        source.end()
        assert b"".join(stdout for stdout, _ in events) == BINARY + b"last"
        assert running.exit_code == 0
    assert source.size == len(b"first\n" + BINARY + b"last")
    assert_usable(any_shell)


def test_a_command_that_reads_nothing_ends_without_its_input(any_shell: Session) -> None:
    assert run(any_shell, "true", arriving=Arriving()).exit_code == 0, "an input that never comes holds the command"
    assert run(any_shell, "exit 3", arriving=Endless()).exit_code == 3, "an input that never ends holds the command"
    assert_usable(any_shell)


def test_a_command_that_reads_a_part_gets_that_part(any_shell: Session) -> None:
    assert out(any_shell, "head -c 5", arriving=Endless()) == "\0\1\2\3\4"
    assert_usable(any_shell)


def test_an_argv_reads_what_arrives(any_shell: Session) -> None:
    assert bytes(run(any_shell, b"", argv=(b"cat",), arriving=whole(BINARY)).stdout) == BINARY


def test_changes_of_a_command_with_input_last(posix: Session) -> None:
    assert run(posix, "cd /; read -r A; export A", arriving=whole(b"value\n")).exit_code == 0
    assert out(posix, 'pwd; echo "$A"') == "/\nvalue\n"


def test_input_that_breaks_off_is_not_taken_for_the_whole(any_shell: Session, tmp_path: Path) -> None:
    source = Arriving(b"a part")
    command = Command(f"cat >{tmp_path}/copy; echo whole >{tmp_path}/whole".encode(), arriving=source)
    with any_shell.begin(command, DEADLINE_SECONDS) as running:
        source.break_off()
        with pytest.raises(CommandCancelled, match="input broke off"):
            running.result()
    assert not (tmp_path / "whole").exists(), "the command took a part for the whole input"
    assert_usable(any_shell)


def test_a_command_that_does_not_begin_leaves_nothing_waiting(any_shell: Session, tmp_path: Path) -> None:
    with pytest.raises(NoSuchDirectory):
        run(any_shell, "cat", directory=b"/no/such/directory", arriving=Endless())
    (tmp_path / "place").mkdir()
    run(any_shell, f"cd {tmp_path}/place")
    (tmp_path / "place").rmdir()
    with pytest.raises(NoSuchDirectory):
        run(any_shell, "cat", arriving=Arriving())
    assert_usable(any_shell)


@pytest.mark.local("the daemon's own temporary directory is looked at")
def test_the_pipe_for_input_is_removed(any_shell: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for source in (whole(b"x"), Arriving(), Endless()):
        run(any_shell, "true", arriving=source)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.local("the time limit of a constant is set")
def test_a_reader_that_begins_late_misses_nothing(bash: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    # A pipe holds 64 KiB; the rest waits for the reader, longer than the limits of opening a channel.
    monkeypatch.setattr("connmgr.engine.session.SEND_SECONDS", 0.3)
    data = BINARY * 4
    assert bytes(run(bash, "sleep 1; cat", stdin=data).stdout) == data


class OneChannel(Link):
    """A link that refuses every channel after the session's."""

    def __init__(self) -> None:
        super().__init__(Delegate)
        self._opened = False

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        if self._opened:
            raise ChannelRefused("One is enough.")
        self._opened = True
        return super().open_channel(argv, pty=pty, timeout=timeout)


@pytest.mark.local("it has a transport of its own")
def test_without_a_second_channel_input_is_refused_and_not_dropped(tmp_path: Path) -> None:
    with local_session("sh", transport=OneChannel()) as session:
        with pytest.raises(ChannelRefused, match=r"did not run.*One is enough"):
            run(session, f"touch {tmp_path}/ran", arriving=whole(b"x"))
        assert not (tmp_path / "ran").exists()
        large = b"x" * 100_000
        assert bytes(run(session, "cat", stdin=large).stdout) == large, (
            "input that is there has a place in the envelope"
        )
        assert_usable(session)


@pytest.mark.local("the remote host's program is watched")
@pytest.mark.parametrize("manner", ["exact", ""])
def test_chunks_are_exact_whatever_the_remote_host_has(manner: str, tmp_path: Path) -> None:
    """The chunks of a channel that is a terminal, read by GNU's dd and by head."""
    program = stdin_pipe.CHUNKS.text + f'exact={manner}; block=4096; say() {{ echo "$@"; }}; chunks 5>&2; cat'
    pieces = (b"a" * 10_000, b"b" * 4096, b"c")
    sent = b"".join(b"%d\n" % len(piece) + piece for piece in pieces) + b"0\nrest"
    done = subprocess.run(["/bin/sh", "-c", program], input=sent, capture_output=True, check=True)
    assert done.stdout == b"".join(pieces) + b"rest"
    if not manner:
        assert done.stderr == b"ok\n" * 3


@pytest.mark.parametrize("options", [{"text": b"cat; A=1"}, {"argv": (b"cat",)}], ids=["text", "argv"])
@pytest.mark.local("the pipe is taken away here")
def test_a_command_whose_input_is_gone_does_not_run(
    posix: Session, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    def vanished(channel: Channel, deadline: Deadline) -> tuple[bytes, bytes]:
        manner, path = announced(channel, deadline)
        Path(os.fsdecode(path)).unlink()
        return manner, path

    announced = stdin_pipe._announced
    monkeypatch.setattr(stdin_pipe, "_announced", vanished)
    monkeypatch.setattr(stdin_pipe, "END_SECONDS", 0.1)
    result = posix.exec(Command(stdin=BINARY, **options), DEADLINE_SECONDS)  # type: ignore[arg-type]
    assert (result.exit_code != 0, bytes(result.stdout)) == (True, b"")
    assert_usable(posix)
