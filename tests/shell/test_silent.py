"""A remote host that fell silent while this machine slept: the daemon probes it before it sends a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.cancellation import NEVER
from connmgr.engine.envelope import Command
from connmgr.links.table import LinkTable
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.shell import opening
from connmgr.shell import shells as module
from connmgr.shell.broadcast import Broadcast, Order
from connmgr.shell.commands import begin_command
from connmgr.shell.shells import ShellRef, ShellTable
from connmgr.vault import Vault
from connmgr.vault.connection_rows import fingerprint
from connmgr_ssh import SshSchema, packets
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "bash")

PROBE_SECONDS = 0.3
"""Longest wait for a sign of life."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with ssh_server(tmp_path) as started:
        yield started


@pytest.fixture
def shells(vault: Vault, tmp_path: Path) -> Iterator[ShellTable]:
    registry = Registry.load()
    limits = {"max_output": 1 << 20, "idle_timeout": 0, "start_timeout": DEADLINE_SECONDS}
    made = ShellTable(vault, registry, LinkTable(vault, registry), orphans=tmp_path / "shells.json", **limits)  # type: ignore[arg-type]
    yield made
    made.close(DEADLINE_SECONDS)


@pytest.fixture
def far(vault: Vault, shells: ShellTable, server: Sshd) -> str:
    """A connection whose shell runs and is in /usr."""
    data = SshSchema().load(ssh_fields(server, server.user))
    id = vault.connections.add("far", "ssh", data, fingerprint=fingerprint(data), same=lambda _: False)[0]
    assert run(shells, id, "cd /usr") == ("", False)
    return id


def run(shells: ShellTable, connection: str, command: str) -> tuple[str, bool]:
    """Return a command's output, and whether its shell was started again."""
    sent = Command(command.encode())
    begun = begin_command(shells, ShellRef(connection), Access(), sent, DEADLINE_SECONDS, NEVER, start=True)
    with begun as (running, restarted):
        return bytes(running.result().stdout).decode().strip(), restarted


def sleep_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    before = packets.now
    monkeypatch.setattr(packets, "now", lambda: before() + 3600)


def fall_silent(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the processes of the server's connections, and move the sleep clock; the server accepts new ones."""
    for name in (module, opening):
        monkeypatch.setattr(name, "PROBE_SECONDS", PROBE_SECONDS)
    for process in server.sessions():
        process.send_signal(signal.SIGSTOP)
    sleep_for_an_hour(monkeypatch)


def test_a_remote_host_that_is_there_keeps_its_shell(
    shells: ShellTable, far: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep_for_an_hour(monkeypatch)
    assert run(shells, far, "pwd") == ("/usr", False)


def test_a_silent_one_is_left_before_the_command_is_sent(
    shells: ShellTable, far: str, server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = server.sessions()
    fall_silent(server, monkeypatch)
    counter = tmp_path / "counter"
    assert run(shells, far, f"echo once >> {counter}; cat {counter}") == ("once", True)
    assert run(shells, far, "pwd")[1] is False
    for process in before:
        process.send_signal(signal.SIGCONT)
    assert run(shells, far, f"cat {counter}")[0] == "once", "the command was sent to the silent remote host too"


def test_a_start_leaves_it_too(shells: ShellTable, far: str, server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    fall_silent(server, monkeypatch)
    assert shells.start(far, Access()).restarted
    assert run(shells, far, "pwd")[0] != "/usr"


def test_a_broadcast_leaves_it_too(
    vault: Vault, shells: ShellTable, far: str, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [vault.connections.get(far)]
    assert shells.admitted(stored, Access()) == stored
    fall_silent(server, monkeypatch)
    assert shells.admitted(stored, Access()) == [], "a shell whose remote host is silent counts as ready"
    work = Broadcast(shells, Access(), Order(Command(b"pwd"), DEADLINE_SECONDS, 1, start=True), [], [far])
    (outcome,) = (one for some in work.outcomes() for one in some)
    assert outcome.restarted, outcome
