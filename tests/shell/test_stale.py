"""A connection that is changed or removed while its shell is being started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.engine.envelope import Command
from connmgr.errors import ConnmgrError, NoShell, ShellBusy, UnknownConnection
from connmgr.links.table import LinkTable
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.shell import opening
from connmgr.shell import shells as module
from connmgr.shell.opening import Shell
from connmgr.shell.shells import ShellEntries, ShellTable
from connmgr.vault import Vault
from connmgr.vault.connection_rows import fingerprint
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.processes import await_ends, runs
from tests.shell.test_shells import add_local, supervisor

LOCK_SECONDS = 0.05
"""Longest wait of a change for a thread that starts the shell."""

pytestmark = pytest.mark.needs("bash")


class Held:
    """Opens real shells, and returns none before ``go_on`` is set; ``opened`` are their process ids."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[int] = []
        self.waits, self.go_on = threading.Event(), threading.Event()
        self._open: Callable[..., Shell] = opening.open_shell
        monkeypatch.setattr(opening, "open_shell", self)

    def __call__(self, *arguments: Any, **limits: Any) -> Shell:
        shell = self._open(*arguments, **limits)
        self.opened.append(shell.session.pid)
        self.waits.set()
        assert self.go_on.wait(DEADLINE_SECONDS)
        return shell


@pytest.fixture
def shells(vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShellTable]:
    monkeypatch.setattr(module, "ShellEntries", lambda **_: ShellEntries(LOCK_SECONDS))
    registry = Registry.load()
    made = ShellTable(
        vault,
        registry,
        LinkTable(vault, registry),
        max_output=1 << 20,
        idle_timeout=0,
        start_timeout=DEADLINE_SECONDS,
        orphans=tmp_path / "shells.json",
    )
    yield made
    made.close(DEADLINE_SECONDS)


@pytest.fixture
def connection(vault: Vault) -> str:
    data = {"shell": "/bin/dash"}
    return vault.connections.add("one", "local", data, fingerprint=fingerprint(data), same=lambda _: False)[0]


def run(shells: ShellTable, connection: str, command: bytes) -> bytes:
    with shells.using(connection, Access()) as session:
        return bytes(session.exec(Command(command), DEADLINE_SECONDS).stdout)


def bash(shells: ShellTable, connection: str) -> bool:
    return bool(run(shells, connection, b"echo $BASH_VERSION").strip())


def changed_while_started(
    shells: ShellTable, connection: str, held: Held, change: Callable[[], object]
) -> list[object]:
    """Change a connection during a start of its shell that lasts longer than the change waits; return its outcome."""
    ends: list[object] = []

    def start() -> None:
        try:
            ends.append(shells.start(connection, Access()))
        except ConnmgrError as error:
            ends.append(error)

    starter = threading.Thread(target=start)
    starter.start()
    assert held.waits.wait(DEADLINE_SECONDS)
    change()
    with pytest.raises(ShellBusy, match="is stored"):
        shells.forget([connection])
    held.go_on.set()
    starter.join(DEADLINE_SECONDS)
    return ends


def test_a_shell_that_is_started_on_what_a_connection_was_is_started_again(
    vault: Vault, shells: ShellTable, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    data = {"shell": "/bin/bash"}
    (info,) = changed_while_started(
        shells,
        connection,
        held,
        lambda: vault.connections.update(connection, data=data, fingerprint=fingerprint(data)),
    )
    assert not isinstance(info, Exception)
    assert bash(shells, connection), "the shell runs on what the connection was before"
    assert not runs(held.opened[0])


def test_a_shell_of_a_connection_that_is_removed_while_it_is_started_ends(
    vault: Vault, shells: ShellTable, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    (refusal,) = changed_while_started(
        shells, connection, held, lambda: vault.connections.remove([connection]) and None
    )
    with pytest.raises(UnknownConnection):
        run(shells, connection, b"true")
    assert isinstance(refusal, UnknownConnection)
    assert [runs(pid) for pid in held.opened] == [False]
    assert not shells.status()


def test_a_shell_that_runs_is_found_by_nobody_once_its_connection_is_changed(
    vault: Vault, shells: ShellTable, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shells.start(connection, Access())
    (pid,) = [int(one.pid) for one in psutil.Process().children() if one.name() == "dash"]
    asked, go_on = threading.Event(), threading.Event()
    (shell,) = [shell for _, _, shell in shells._entries.taken()]
    probe = shell.session.probe

    def slowly(timeout: float) -> bool:
        asked.set()
        assert go_on.wait(DEADLINE_SECONDS)
        return probe(timeout)

    monkeypatch.setattr(shell.session, "probe", slowly)
    starter = threading.Thread(target=shells.start, args=(connection, Access()))
    starter.start()
    assert asked.wait(DEADLINE_SECONDS)
    data = {"shell": "/bin/bash"}
    vault.connections.update(connection, data=data, fingerprint=fingerprint(data))
    with pytest.raises(ShellBusy):
        shells.forget([connection])
    with pytest.raises(NoShell):
        run(shells, connection, b"true")
    go_on.set()
    starter.join(DEADLINE_SECONDS)
    assert not runs(pid)
    assert bash(shells, connection)


def test_the_shells_of_a_category_that_is_removed_with_its_contents_end(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    connection = add_local(client, "/bin/dash")
    root = client.post("/category/query", filter="all connections")["found"][0]
    category = client.post("/category/add", name="short-lived", parent=root)["category"]
    client.post("/connection/update", connection=connection, category=category)
    client.post("/shell/start", connection=connection)
    shell = supervisor(client, connection)
    client.post("/category/remove", categories=[category], removeChildrenCategories=True, removeContents=True)
    await_ends(shell.pid)
