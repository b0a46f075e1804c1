"""A server that allows few sessions a connection (MaxSessions 1): files and kills go over a second connection."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.fs.wire import Caller
from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.places import Places, ssh_fields
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("machine", "sudo", "sshd", "bash")


@pytest.fixture(params=["1", "2", "3"])
def strict(request: pytest.FixtureRequest, running_machine: Machine, places: Places) -> Iterator[Sshd]:
    server = Sshd({"MaxSessions": request.param, "AcceptEnv": "none"}, inside=running_machine.inside())
    yield server
    server.close()


def connect(daemon: Daemon, data: dict[str, Any]) -> str:
    connection = daemon.client.post("/connection/add", name="test", data=data, validate=False)["connection"]
    daemon.client.post("/shell/start", connection=connection)
    return str(connection)


@pytest.mark.parametrize("elevated", [False, True], ids=["plain", "elevated"])
def test_files_and_timeouts(start_daemon: StartDaemon, strict: Sshd, running_machine: Machine, elevated: bool) -> None:
    user: Inhabitant = running_machine.add_user()
    running_machine.allow(f"{user.name} ALL=(ALL) ALL")
    daemon = start_daemon()
    caller = Caller(daemon)
    connection = connect(daemon, {"type": "ssh", **ssh_fields(strict, user.name)})
    if elevated:
        daemon.client.post("/shell/stop", connection=connection)
        wrapped = {"type": "shellEnvironment", "host": connection, "elevated": True, "password": user.password}
        connection = connect(daemon, wrapped)
    content = os.urandom(300_000)
    blob = caller.blob(content)
    for _ in range(3):
        written = caller.post("/fs/write", connection=connection, blob=blob, path=f"{user.home}/file")
        assert (written.status, written.body) == (200, b"")
        assert caller.post("/fs/read", connection=connection, path=f"{user.home}/file").body == content
        # Whatever becomes of the second connection, the next request has another one.
        running = daemon.client.post("/shell/exec", connection=connection, command="sleep 0; echo $PPID")
        assert running["exitCode"] == 0
    late = caller.post("/shell/exec", connection=connection, command="echo started; sleep 100", timeout=1)
    assert (late.status, late.code) == (500, "command_timeout")
    still = daemon.client.post("/shell/exec", connection=connection, command="echo still here")
    assert still == {"exitCode": 0, "stdout": "still here", "stderr": ""}
    assert len([line for line in strict.log().splitlines() if "Accepted publickey" in line]) <= 5
    daemon.client.post("/shell/stop", connection=connection)
    daemon.stop()
    assert strict.sessions() == []
