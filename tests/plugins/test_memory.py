"""The connection type without a machine, and logins on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from connmgr.errors import AuthFailed, ElevationFailed, OperationError
from connmgr.plugin import Pty
from connmgr.testing import WAIT_SECONDS, InMemory, MemoryTransport, Outcome, Process, connect, run
from connmgr.testing.memory import HUNG_UP, STREAM_BYTES
from connmgr_elevated import ShellEnvironment

HOST = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
PASSWORD = "a canary that sings"


def cat(process: Process) -> int:
    while line := process.readline():
        process.write(line)
    return 0


def both(process: Process) -> int:
    process.write(b"out " + b" ".join(word.encode() for word in process.argv[1:]))
    process.write_error(b"err")
    return 3


def flood(process: Process) -> int:
    process.write(bytes(STREAM_BYTES * 8))
    return 0


def fails(process: Process) -> int:
    raise ValueError("a mistake in a program")


def delegates(process: Process) -> int:
    return process.run(["both", "from within"]) + 1


PROGRAMS = {"cat": cat, "both": both, "flood": flood, "fails": fails, "delegates": delegates}


@pytest.fixture
def machine() -> Iterator[MemoryTransport]:
    transport = connect(InMemory(PROGRAMS), {})
    assert isinstance(transport, MemoryTransport)
    yield transport
    transport.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("in-memory")] == []


def test_a_program_has_argv_streams_and_a_status(machine: MemoryTransport) -> None:
    assert run(machine, ["both", "a", "b"]) == Outcome(3, b"out a b", b"err")


def test_a_terminal_merges_the_streams(machine: MemoryTransport) -> None:
    assert run(machine, ["both", "a"], pty=Pty()) == Outcome(3, b"out aerr", b"")


def test_a_program_reads_lines_to_the_end(machine: MemoryTransport) -> None:
    assert run(machine, ["cat"], b"one\ntwo") == Outcome(0, b"one\ntwo", b"")


def test_a_program_can_become_another(machine: MemoryTransport) -> None:
    assert run(machine, ["delegates"]) == Outcome(4, b"out from within", b"err")
    assert machine.started == [["delegates"], ["both", "from within"]]


def test_a_program_waits_until_it_is_read(machine: MemoryTransport) -> None:
    channel = machine.open_channel(["flood"], timeout=WAIT_SECONDS)
    assert len(channel.recv(WAIT_SECONDS)[0]) <= STREAM_BYTES
    with pytest.raises(TimeoutError):
        channel.exit_status(0.01)
    assert len(run(machine, ["flood"]).stdout) == STREAM_BYTES * 8


def test_a_writer_waits_until_the_program_reads(machine: MemoryTransport) -> None:
    channel = machine.open_channel(["flood"], timeout=WAIT_SECONDS)
    with pytest.raises(TimeoutError):
        channel.sendall(bytes(STREAM_BYTES + 1), 0.05)


def test_closing_ends_a_program_that_waits(machine: MemoryTransport) -> None:
    for name in ("cat", "flood"):
        channel = machine.open_channel([name], timeout=WAIT_SECONDS)
        channel.close()
        channel.close()
        assert channel.exit_status(WAIT_SECONDS) == HUNG_UP
        with pytest.raises(EOFError):
            channel.recv(WAIT_SECONDS)
        with pytest.raises(BrokenPipeError):
            channel.sendall(b"x", WAIT_SECONDS)


def test_a_mistake_in_a_program_is_seen(machine: MemoryTransport) -> None:
    outcome = run(machine, ["fails"])
    assert outcome.status == 1
    assert b"ValueError: a mistake in a program" in outcome.stderr


@pytest.mark.parametrize("argv", [["nonesuch"], ["/bin/sh", "-c", "echo hi"], ["/bin/sh"]])
def test_a_missing_program_is_reported(machine: MemoryTransport, argv: list[str]) -> None:
    outcome = run(machine, argv)
    assert outcome.status == 127
    assert outcome.stderr


def test_a_closed_transport_starts_nothing(machine: MemoryTransport) -> None:
    machine.close()
    with pytest.raises(OperationError):
        machine.open_channel(["cat"], timeout=WAIT_SECONDS)


class Sudo:
    """sudo as in its manual, for one argv: it asks for the password if there is one, and runs or refuses."""

    def __init__(self, password: str | None) -> None:
        self.password = password
        self.read: list[bytes] = []

    def __call__(self, process: Process) -> int:
        program = process.argv[process.argv.index("--") + 1 :]
        if self.password is not None:
            prompt = process.argv[process.argv.index("-p") + 1]
            process.write_error(prompt.replace("%%", "%").encode())
            self.read.append(process.readline())
            if self.read[-1] != self.password.encode() + b"\n":
                process.write_error(b"Sorry, try again.\n")
                return 1
        return process.run(program)


def elevate(sudo: Sudo) -> tuple[MemoryTransport, Outcome]:
    inner = MemoryTransport({**PROGRAMS, "sudo": sudo})
    data = {"host": HOST, "elevated": True, "password": PASSWORD}
    try:
        return inner, run(connect(ShellEnvironment(), data, inner), ["both", "as root"])
    finally:
        inner.close()


def test_a_login_is_held_and_the_program_s_streams_stay_apart() -> None:
    sudo = Sudo(PASSWORD)
    machine, outcome = elevate(sudo)
    assert outcome == Outcome(3, b"out as root", b"err")
    assert sudo.read == [PASSWORD.encode() + b"\n"]
    assert PASSWORD not in str(machine.started)


def test_a_password_that_nobody_asks_for_is_not_written() -> None:
    sudo = Sudo(None)
    assert elevate(sudo)[1].stdout == b"out as root"
    assert sudo.read == []


def test_a_refused_password_is_tried_once() -> None:
    sudo = Sudo("another one")
    with pytest.raises(AuthFailed) as refusal:
        elevate(sudo)
    assert len(sudo.read) == 1
    assert PASSWORD not in refusal.value.message


def test_a_program_that_ends_without_access_is_told_from_a_wrong_password() -> None:
    def broken(process: Process) -> int:
        process.write_error(b"sudo: unable to initialise policy plugin\n")
        return 1

    inner = MemoryTransport({"sudo": broken})
    transport = connect(ShellEnvironment(), {"host": HOST, "elevated": True, "password": PASSWORD}, inner)
    with pytest.raises(ElevationFailed, match="policy plugin"):
        transport.open_channel(["both"], timeout=WAIT_SECONDS)
    inner.close()
