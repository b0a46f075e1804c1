"""A running command: its output as it comes, its end, and commands whose reader stops early."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from connmgr.cancellation import Cancellation
from connmgr.engine.envelope import Command
from connmgr.engine.running import PIECE_BYTES
from connmgr.engine.session import Session
from connmgr.errors import CommandCancelled, CommandTimeout, NoSuchDirectory
from tests.engine.shells import out

COMMAND_SECONDS = 60


def test_output_comes_while_the_command_runs(any_shell: Session, tmp_path: Path) -> None:
    go = tmp_path / "go"
    text = f"echo first; sh -c 'while [ ! -e {go} ]; do sleep 0.01; done'; echo second".encode()
    with any_shell.begin(Command(text), COMMAND_SECONDS) as running:
        events = running.events()
        assert next(events) == (b"first\n", b"")
        assert not running.ended
        go.touch()
        assert b"".join(stdout for stdout, _ in events) == b"second\n"
        assert running.exit_code == 0


def test_the_two_streams_are_apart_and_whole(posix: Session) -> None:
    text = b"i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; exit 7"
    with posix.begin(Command(text), COMMAND_SECONDS) as running:
        pieces = list(running.events())
        assert running.exit_code == 7
    streams = [b"".join(piece[which] for piece in pieces) for which in (0, 1)]
    assert streams == [b"".join(b"%s %d\n" % (name, n) for n in range(2000)) for name in (b"out", b"err")]


def test_events_have_no_limit_of_output(bash: Session) -> None:
    bash._max_output = 1000
    with bash.begin(Command(b"head -c 3000000 /dev/zero"), COMMAND_SECONDS) as running:
        assert sum(len(stdout) for stdout, _ in running.events()) == 3_000_000


def test_the_state_is_kept_after_the_events_of_a_command_were_read(any_shell: Session) -> None:
    with any_shell.begin(Command(b"cd /usr"), COMMAND_SECONDS) as running:
        list(running.events())
    assert out(any_shell, "pwd") == "/usr\n"


def test_a_command_that_is_left_is_killed_and_the_session_goes_on(any_shell: Session) -> None:
    begun = time.monotonic()
    with any_shell.begin(Command(b"echo first; sleep 50"), COMMAND_SECONDS) as running:
        assert next(running.events()) == (b"first\n", b"")
    assert running.ended
    assert time.monotonic() - begun < 30, "it was waited for instead of killed"
    assert out(any_shell, "echo still here") == "still here\n"


def test_a_reader_that_fails_leaves_the_session_whole(bash: Session) -> None:
    with pytest.raises(ZeroDivisionError), bash.begin(Command(b"sleep 50"), COMMAND_SECONDS):
        raise ZeroDivisionError
    assert out(bash, "echo still here") == "still here\n"


def test_all_that_was_printed_comes_before_the_timeout_is_told(bash: Session) -> None:
    pieces = []
    with pytest.raises(CommandTimeout), bash.begin(Command(b"echo first; sleep 50"), 0.5) as running:
        pieces.extend(running.events())
    assert pieces == [(b"first\n", b"")]


def test_a_command_that_nobody_waits_for_is_cancelled(bash: Session) -> None:
    cancellation = Cancellation()
    with bash.begin(Command(b"sleep 50"), COMMAND_SECONDS, cancellation) as running:
        cancellation.cancel()
        with pytest.raises(CommandCancelled):
            list(running.events())
    assert out(bash, "echo still here") == "still here\n"


def test_a_directory_that_cannot_be_entered_is_told_at_the_end(bash: Session) -> None:
    with (
        pytest.raises(NoSuchDirectory),
        bash.begin(Command(b"echo never", directory=b"/nowhere"), COMMAND_SECONDS) as running,
    ):
        list(running.events())
    assert out(bash, "echo still here") == "still here\n"


def test_output_is_read_only_while_there_is_room(bash: Session) -> None:
    asked = 0

    def room(_: float) -> bool:
        nonlocal asked
        asked += 1
        return asked > 20

    with bash.begin(Command(b"echo first"), COMMAND_SECONDS) as running:
        assert next(running.events(room)) == (b"first\n", b"")
    assert asked > 20


def test_the_time_goes_on_without_room_and_what_is_left_is_dropped(bash: Session) -> None:
    command = Command(b"while echo again; do :; done")
    with pytest.raises(CommandTimeout), bash.begin(command, 0.5) as running:
        list(running.events(lambda _: False))
    assert out(bash, "echo still here") == "still here\n"


def test_a_reader_that_has_gone_is_not_waited_for(bash: Session) -> None:
    cancellation = Cancellation()
    with bash.begin(Command(b"sleep 50"), COMMAND_SECONDS, cancellation) as running:
        cancellation.cancel()
        with pytest.raises(CommandCancelled):
            list(running.events(lambda _: False))


def test_a_command_left_between_two_pieces_is_killed(bash: Session) -> None:
    text = b"head -c 3000000 /dev/zero; sleep 50"
    with bash.begin(Command(text), COMMAND_SECONDS) as running:
        full = (stdout for stdout, _ in running.events() if len(stdout) == PIECE_BYTES)
        assert next(full)
    assert running.ended
    assert out(bash, "echo still here") == "still here\n"
