"""Terminals end when they are unused for long, and with the daemon; attached clients are told."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from connmgr.computing import Computing, Pace
from connmgr.contract.terminal import EXITED
from connmgr.links.table import LinkTable
from connmgr.pipes.streams import Streams
from connmgr.plugin import Pty
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.terminals.recording import Recordings
from connmgr.terminals.terminal import Terminal
from connmgr.terminals.terminals import TerminalLimits, Terminals, TerminalSpec
from connmgr.vault import Vault
from connmgr.vault.connection_rows import fingerprint
from tests.api.wire import LOCAL
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually_equal
from tests.processes import await_ends
from tests.terminals.desk import Desk

DeskAt = Callable[[Daemon], Desk]


@pytest.fixture
def desk_at() -> Iterator[DeskAt]:
    """A function that returns a desk at a daemon."""
    with contextlib.ExitStack() as streams:

        def open(daemon: Daemon) -> Desk:
            desk = Desk(daemon.url, daemon.auth_file)
            streams.callback(desk.leave)
            return desk

        yield open


def test_the_daemon_s_stop_ends_terminals_and_tells_clients(
    desk_at: DeskAt, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon()
    desk = desk_at(daemon)
    terminal = desk.open(LOCAL, f"echo $$ >{tmp_path}/pid; echo ready; exec sleep 1000", record=True)
    client = terminal.attach()
    client.until(b"ready")
    process = psutil.Process(int((tmp_path / "pid").read_text()))
    daemon.process.send_signal(signal.SIGTERM)
    ended = client.finish()
    assert (ended.error["code"], ended.code) == ("stopping", 1001)
    daemon.stop()
    await_ends(process.pid)
    recording = (daemon.data_dir / "recordings" / f"{terminal.id}.cast").read_text()
    assert "ready" in recording


def test_a_program_that_ends_while_its_terminal_is_opened_is_found(vault: Vault, tmp_path: Path) -> None:
    """Its end releases the only lease of the link, which is closed before the terminal is in the table."""

    class Slow(Terminals):
        def _keep(self, terminal: Terminal) -> None:
            assert terminal.wait(DEADLINE_SECONDS)
            # The link is released beside the thread that sets the state, and either may be first.
            eventually_equal(lambda: terminal.lease.link.usable, False, "the link outlives its last user")
            eventually_equal(lambda: terminal.state, EXITED, "the state does not follow")
            super()._keep(terminal)

    id = vault.connections.add("here", "local", {}, fingerprint=fingerprint({}), same=lambda _: False)[0]
    with contextlib.ExitStack() as cleanup:
        streams = Streams(Computing(), Pace())
        cleanup.callback(streams.close, DEADLINE_SECONDS)
        recordings = Recordings(tmp_path / "recordings", limit=1 << 20, total=1 << 20, days=0)
        links, limits = LinkTable(vault, Registry.load()), TerminalLimits(1, 1, 0)
        terminals = Slow(vault, links, streams, recordings, limits, DEADLINE_SECONDS)
        cleanup.callback(terminals.close, DEADLINE_SECONDS)
        opened = terminals.open(TerminalSpec(id, Pty("xterm", 80, 24), ("true",)), Access())
        assert (opened.state, opened.end) == (EXITED, 0)
        assert terminals.all() == [opened]


@pytest.mark.slow
def test_an_unused_terminal_is_closed(desk_at: DeskAt, start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--terminal-timeout", "1", "--max-recording", "1024")
    desk = desk_at(daemon)
    used, left = desk.open(LOCAL, "seq 1 10000; sleep 1000", record=True), desk.open(LOCAL, "sleep 1000")
    client = used.attach()
    client.until(b"10000")

    def states() -> dict[str, str]:
        return {one["terminal"]: one["state"] for one in desk.ask("/terminal/query")["terminals"]}

    eventually_equal(states, {used.id: "running", left.id: "closed"}, "not the unused one alone is closed")
    assert used.info["recording"] == "cut"


def test_the_terminals_of_a_daemon_are_limited(desk_at: DeskAt, start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--max-terminals", "1")
    desk = desk_at(daemon)
    desk.open(LOCAL, "true").until_ended()
    desk.open(LOCAL, "sleep 1000")
    with pytest.raises(Exception, match="terminal_limit"):
        desk.open(LOCAL, "true")
