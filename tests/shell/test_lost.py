"""Idle shells that die, or whose link breaks, are shown as lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from connmgr.client import Client
from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd
from tests.processes import await_ends
from tests.shell.test_shells import exec_text, supervisor


def states(client: Client) -> dict[str, str]:
    return {shell.connection: shell.state for shell in client.daemon.status().sessions}


def await_lost(client: Client, connection: str) -> None:
    eventually_equal(lambda: states(client)[connection], "lost", "a shell that has ended is shown as one that runs")


def test_a_shell_that_dies_while_idle_is_shown_as_lost(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    shell = supervisor(client, LOCAL)
    assert states(client) == {LOCAL: "idle"}
    shell.kill()
    await_ends(shell.pid)
    await_lost(client, LOCAL)
    client.post("/shell/start", connection=LOCAL)
    assert exec_text(client, LOCAL, "echo again") == "again"
    assert states(client) == {LOCAL: "idle"}


def test_a_dead_shell_whose_streams_a_job_holds_is_shown_as_lost(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    job = psutil.Process(int(exec_text(client, LOCAL, "sleep 300 & echo $!")))
    try:
        shell = supervisor(client, LOCAL)
        shell.kill()
        await_lost(client, LOCAL)
    finally:
        job.kill()


def test_output_of_a_background_job_does_not_end_the_shell(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    release = clean_daemon.home / "release"
    exec_text(client, LOCAL, f"(while ! [ -e {release} ]; do sleep 0.02; done; echo late; echo late >&2) &")
    assert states(client) == {LOCAL: "idle"}
    release.touch()
    for _ in range(20):
        assert states(client) == {LOCAL: "idle"}
    assert exec_text(client, LOCAL, "echo hi") == "hi"


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with ssh_server(tmp_path) as server:
        yield server


@pytest.mark.needs("sshd")
def test_a_shell_whose_link_breaks_while_it_is_idle_is_shown_as_lost(clean_daemon: Daemon, sshd: Sshd) -> None:
    client = clean_daemon.client
    connection = client.connection.add("far", {"type": "ssh", **ssh_fields(sshd, sshd.user)})
    client.post("/shell/start", connection=connection)
    assert states(client) == {connection: "idle"}
    sshd.kill_sessions()
    await_lost(client, connection)
