"""Who cannot open a connection's secrets does not read what others run there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL, add
from tests.daemon import Daemon
from tests.rights.wire import create

PASSPHRASE = "alice's long passphrase"
SECRET = "what only alice may read"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("locked"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def alice(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.url, auth_file=daemon.auth_file) as client:
        client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
        client.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
        yield client


@pytest.fixture(scope="module")
def connection(alice: Client) -> str:
    """An elevated shell on this machine, whose password is sealed to alice."""
    data = {"type": "shellEnvironment", "elevated": True, "host": {"storeId": LOCAL}, "password": "hers"}
    return add(alice, "root", **data)


def test_an_approval_is_shown_to_those_who_can_open_its_connection(
    daemon: Daemon, alice: Client, connection: str
) -> None:
    asking = create(daemon, "shell.any", rules=[{"effect": "ask", "text": "."}])
    answer = asking.send("/shell/exec", connection=connection, command=f"echo {SECRET}")
    assert answer.code == "approval_required"
    id = answer.json["approval"]
    assert SECRET in str(of(alice.post("/approval/query")["approvals"], "approval", id)["asked"])
    seen = of(daemon.client.post("/approval/query")["approvals"], "approval", id)
    assert seen["locked"] is True
    assert seen["asked"] == {"action": "shell.exec", "connections": [connection], "names": ["local machine/root"]}
    with pytest.raises(ClientError) as error:
        daemon.client.post("/approval/decide", approval=id, decision="once")
    assert error.value.code == "secret_locked"
    assert alice.post("/approval/decide", approval=id, decision="deny")["state"] == "denied"


@pytest.mark.needs("sudo")
def test_a_job_and_a_terminal_show_their_commands_to_those_who_can_open_their_connection(
    daemon: Daemon, alice: Client, connection: str
) -> None:
    alice.post("/shell/start", connection=connection)
    job = alice.post("/job/start", connection=connection, command=f"echo {SECRET}")["job"]
    terminal = alice.post("/terminal/open", connection=connection, command=f"echo {SECRET}")["terminal"]
    for path, members, id in (
        ("/job/query", ("jobs", "job"), job),
        ("/terminal/query", ("terminals", "terminal"), terminal),
    ):
        own = of(alice.post(path)[members[0]], members[1], id)
        assert (own["command"], own.get("locked")) == (f"echo {SECRET}", None)
        other = of(daemon.client.post(path)[members[0]], members[1], id)
        assert (other["command"], other["locked"]) == (None, True)


@pytest.mark.needs("sudo")
def test_a_running_command_is_shown_to_those_who_can_open_its_connection(
    daemon: Daemon, alice: Client, connection: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    alice.post("/shell/start", connection=connection)
    with ThreadPoolExecutor(1) as pool, Client(daemon.url, auth_file=daemon.auth_file) as hers:
        hers.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
        body = {"connection": connection, "command": f": {SECRET}; read line < {tmp_path}/gate"}
        running = pool.submit(hers.post, "/shell/exec", **body)
        # The command opens the other end when it runs.
        with (tmp_path / "gate").open("w") as gate:
            [own] = alice.post("/shell/list", connection=connection)["shells"]
            [other] = daemon.client.post("/shell/list", connection=connection)["shells"]
            gate.write("go on\n")
        running.result(30)
    assert SECRET in own["running"]["command"]
    assert other.get("running") is None


def test_a_run_is_shown_to_those_who_can_open_its_connections(daemon: Daemon, alice: Client) -> None:
    data = {"type": "shellEnvironment", "elevated": True, "host": {"storeId": LOCAL}, "password": "hers too"}
    hers = add(alice, "hers", **data)
    run = alice.post("/run/start", connections=[hers, LOCAL], command=f"echo {SECRET}")["run"]
    assert alice.post("/run/wait", run=run, wait=20)["state"] == "done"
    mine = {one["connection"]: one for one in alice.post("/run/targets", run=run)["targets"]}
    assert (mine[hers]["stdout"], "locked" in mine[hers]) == (SECRET, False)
    for seen in (daemon.client.post("/run/info", run=run), of(daemon.client.post("/run/query")["runs"], "run", run)):
        assert (seen["command"], seen["locked"]) == (None, True)
    theirs = {one["connection"]: one for one in daemon.client.post("/run/targets", run=run)["targets"]}
    assert (theirs[hers].get("stdout"), theirs[hers]["locked"]) == (None, True)
    assert (theirs[LOCAL]["stdout"], "locked" in theirs[LOCAL]) == (SECRET, False)
    groups = daemon.client.post("/run/output", run=run)["groups"]
    assert [(one["connections"], one["stdout"]) for one in groups if "locked" in one] == [([hers], "")]
    [one] = daemon.client.post("/run/output", run=run, connection=hers)["groups"]
    assert (one["stdout"], one["locked"]) == ("", True)
    # Whoever may not open it may remove it, which must not show what ran there.
    daemon.client.post("/connection/remove", connections=[hers])
    [one] = daemon.client.post("/run/output", run=run, connection=hers)["groups"]
    assert (one["stdout"], one["locked"]) == ("", True)


def of(entries: list[Any], member: str, id: str) -> Any:
    return next(one for one in entries if one[member] == id)
