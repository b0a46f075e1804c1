"""``client.shell.stream``: pieces as they come, and commands whose stream is left."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from connmgr.client import LOCAL_MACHINE, Client, ClientError, Piece, Unreachable
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import given_time


def test_pieces_come_while_the_command_runs_and_the_exit_code_at_its_end(client: Client, tmp_path: Path) -> None:
    gates = [tmp_path / "first", tmp_path / "second"]
    waits = [f"while [ ! -e {gate} ]; do sleep 0.01; done" for gate in gates]
    command = rf"printf 'one\377'; {waits[0]}; echo two >&2; {waits[1]}; cat; exit 7"
    with client.shell.stream(LOCAL_MACHINE, command, stdin=b"three\0") as stream:
        pieces = iter(stream)
        assert next(pieces) == Piece(b"one\xff", b"")
        assert stream.exit_code is None
        gates[0].touch()
        assert next(pieces) == Piece(b"", b"two\n")
        # The client can send other requests.
        assert client.daemon.status().sessions
        gates[1].touch()
        assert list(pieces) == [Piece(b"three\0", b"")]
        assert stream.exit_code == 7


def test_output_is_byte_by_byte(client: Client, tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(5_000_000))
    with client.shell.stream(LOCAL_MACHINE, f"cat {noise}") as stream:
        digest = hashlib.sha256(b"".join(piece.stdout for piece in stream))
    assert digest.digest() == hashlib.sha256(noise.read_bytes()).digest()


def test_stream_takes_the_options_of_exec(client: Client) -> None:
    with client.shell.stream(LOCAL_MACHINE, "pwd; echo $A", cwd="/usr", env={"A": "b"}) as stream:
        assert b"".join(piece.stdout for piece in stream) == b"/usr\nb\n"
    assert stream.exit_code == 0


def test_errors_before_the_command_begins_are_raised_at_once(clean_daemon: Daemon) -> None:
    with pytest.raises(ClientError) as caught:
        clean_daemon.client.shell.stream(LOCAL_MACHINE, "true")
    assert (caught.value.code, caught.value.status) == ("no_shell", 400)


def test_errors_that_end_the_command_are_raised_after_its_output(client: Client) -> None:
    def pieces_within(seconds: float) -> list[Piece]:
        pieces: list[Piece] = []
        with (
            client.shell.stream(LOCAL_MACHINE, "echo begun; sleep 50", timeout=seconds) as stream,
            pytest.raises(ClientError) as caught,
        ):
            pieces.extend(stream)
        assert (caught.value.code, caught.value.status) == ("command_timeout", 500)
        assert stream.exit_code is None
        return pieces

    assert given_time(pieces_within, bool) == [Piece(b"begun\n", b"")]


def test_leaving_kills_the_command(client: Client) -> None:
    with client.shell.stream(LOCAL_MACHINE, "echo begun; sleep 300") as stream:
        assert next(iter(stream)) == Piece(b"begun\n", b"")
    assert client.shell.exec(LOCAL_MACHINE, "echo free", timeout=20).stdout == "free"


def test_the_shell_is_free_when_the_iteration_has_ended(start_daemon: StartDaemon) -> None:
    client = start_daemon("--threads", "1").client
    client.shell.start(LOCAL_MACHINE)
    for _ in range(20):
        with client.shell.stream(LOCAL_MACHINE, "echo begun") as stream:
            assert list(stream) == [Piece(b"begun\n", b"")]
            assert client.shell.exec(LOCAL_MACHINE, "true").exit_code == 0


def test_a_daemon_that_dies_breaks_the_iteration(own_daemon: Daemon) -> None:
    client = own_daemon.client
    client.shell.start(LOCAL_MACHINE)
    with client.shell.stream(LOCAL_MACHINE, "echo begun; sleep 30") as stream:
        pieces = iter(stream)
        assert next(pieces) == Piece(b"begun\n", b"")
        own_daemon.kill()
        with pytest.raises(Unreachable, match="broke off"):
            next(pieces)
