"""A password goes to the program that asks for it, once, and nowhere else."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from connmgr.errors import AuthFailed
from connmgr.plugin import Channel, Pty, Transport
from tests.engine.shells import assert_usable
from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.places import Places, attempt, elevate, here_and_afar, session_on

pytestmark = pytest.mark.needs("machine", "sudo", "su", "doas", "sshd", "bash")

SECRET = "a secret of one user alone"


def exposures(secret: str) -> list[str]:
    """Return the files of /proc that show ``secret`` in a process's argv or environment."""
    found = []
    for name in ("cmdline", "environ"):
        for path in Path("/proc").glob(f"[0-9]*/{name}"):
            with suppress(OSError):
                if secret.encode() in path.read_bytes():
                    found.append(str(path))
    return found


class Watched(Transport):
    """A transport that records all input of its processes, and searches for exposures at each write."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.written: list[bytes] = []
        self.exposed: list[str] = []

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        assert SECRET not in " ".join(argv)
        return WatchedChannel(self._inner.open_channel(argv, pty=pty, timeout=timeout), self)

    def close(self) -> None:
        """Do nothing: the inner transport is closed by its owner."""


class WatchedChannel(Channel):
    def __init__(self, channel: Channel, watch: Watched) -> None:
        self.merged = channel.merged
        self._watch = watch
        self._channel = channel

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        return self._channel.recv(timeout)

    def sendall(self, data: bytes, timeout: float) -> None:
        self._watch.written.append(data)
        self._watch.exposed += exposures(SECRET)
        self._channel.sendall(data, timeout)

    def shutdown_write(self) -> None:
        self._channel.shutdown_write()

    def exit_status(self, timeout: float) -> int:
        return self._channel.exit_status(timeout)

    def close(self) -> None:
        self._channel.close()


@pytest.fixture(scope="module")
def keeper(running_machine: Machine) -> Inhabitant:
    """A user with a unique password."""
    return running_machine.add_user(password=SECRET)


ASKED = {
    "sudo": ("{user} ALL=(ALL) ALL", "", "sudo"),
    "sudo on a terminal": ("Defaults requiretty\n{user} ALL=(ALL) ALL", "", "sudo"),
    "doas": ("", "permit {user}", "doas"),
}


@here_and_afar(ASKED)
def test_written_once_where_asked_for(
    machine: Machine, places: Places, keeper: Inhabitant, place: str, case: str
) -> None:
    sudoers, doas, method = ASKED[case]
    machine.allow(sudoers.format(user=keeper.name), doas=doas.format(user=keeper.name))
    with places.reach(place, keeper) as inner:
        watched = Watched(inner)
        with session_on(elevate(watched, method=method, password=SECRET)) as session:
            assert_usable(session)
            assert exposures(SECRET) == []
    whole = b"".join(watched.written)
    assert whole.count(SECRET.encode()) == 1
    assert watched.written[0] == SECRET.encode() + b"\n", "something was written before the prompt was answered"
    assert watched.exposed == []


NOT_ASKED = {
    "sudo": ("{user} ALL=(ALL) NOPASSWD: ALL", "", "sudo"),
    "sudo with a lecture": ("Defaults lecture=always\n{user} ALL=(ALL) NOPASSWD: ALL", "", "sudo"),
    "sudo on a terminal": ("Defaults requiretty\n{user} ALL=(ALL) NOPASSWD: ALL", "", "sudo"),
    "doas": ("", "permit nopass {user}", "doas"),
}


@here_and_afar(NOT_ASKED)
def test_never_written_where_not_asked_for(
    machine: Machine, places: Places, keeper: Inhabitant, place: str, case: str
) -> None:
    sudoers, doas, method = NOT_ASKED[case]
    machine.allow(sudoers.format(user=keeper.name), doas=doas.format(user=keeper.name))
    with places.reach(place, keeper) as inner:
        watched = Watched(inner)
        with session_on(elevate(watched, method=method, password=SECRET)) as session:
            assert_usable(session)
    assert SECRET.encode() not in b"".join(watched.written)


@pytest.mark.parametrize("method", ["sudo", "su", "doas"])
def test_a_refused_one_is_written_once(machine: Machine, places: Places, user: Inhabitant, method: str) -> None:
    machine.allow(f"{user.name} ALL=(ALL) ALL", doas=f"permit {user.name}")
    with places.reach("local", user) as inner:
        watched = Watched(inner)
        with pytest.raises(AuthFailed) as caught:
            attempt(elevate(watched, method=method, password=SECRET))
    assert b"".join(watched.written) == SECRET.encode() + b"\n"
    assert SECRET not in caught.value.message
    assert watched.exposed == []
    assert machine.refusals == 1


def test_exposures_are_found() -> None:
    """The search finds an exposed secret."""
    argv, pipe = ["cat", "-", "shown in argv"], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, env={"SHOWN": "in environ"}, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        # Popen() may return before the kernel shows the new program's argv.
        process.stdin.write(b"started\n")
        assert process.stdout.readline() == b"started\n"
        assert exposures("shown in argv") == [f"/proc/{process.pid}/cmdline"]
        assert exposures("SHOWN=in environ") == [f"/proc/{process.pid}/environ"]
        process.kill()
