"""A server that allows one session on a connection (MaxSessions 1): files and kills use a second connection."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.api.wire import add
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.fs.wire import Caller
from tests.plugins.machine import Machine
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "bash")


@dataclass(frozen=True)
class Strict:
    """A user of a server with MaxSessions 1; ``password`` is the one for sudo, if the user may use it."""

    server: Sshd
    user: str
    home: str
    password: str | None = None


@pytest.fixture
def strict(request: pytest.FixtureRequest, sessions: str, way: str) -> Iterator[Strict]:
    options = {"MaxSessions": sessions, "AcceptEnv": "none"}
    if way == "plain":
        home: Path = request.getfixturevalue("home_of_the_daemon")
        with ssh_server(home, **options) as server:
            yield Strict(server, server.user, str(home))
    else:
        machine: Machine = request.getfixturevalue("running_machine")
        user = machine.add_user()
        machine.allow(f"{user.name} ALL=(ALL) ALL")
        with closing(Sshd(options, inside=machine.inside())) as server:
            yield Strict(server, user.name, user.home, user.password)


def connect(daemon: Daemon, data: dict[str, Any]) -> str:
    connection = add(daemon.client, "test", **data)
    daemon.client.post("/shell/start", connection=connection)
    return str(connection)


ELEVATED = pytest.mark.needs("machine", "sudo")


@pytest.mark.parametrize(
    ("sessions", "way"),
    [
        ("1", "plain"),
        pytest.param("1", "elevated", marks=ELEVATED),
        pytest.param("2", "elevated", marks=ELEVATED),
        ("3", "plain"),
    ],
)
def test_files_and_timeouts(start_daemon: StartDaemon, strict: Strict) -> None:
    daemon = start_daemon()
    caller = Caller(daemon)
    connection = connect(daemon, {"type": "ssh", **ssh_fields(strict.server, strict.user)})
    if strict.password:
        daemon.client.post("/shell/stop", connection=connection)
        wrapped = {"type": "shellEnvironment", "host": connection, "elevated": True, "password": strict.password}
        connection = connect(daemon, wrapped)
    content = os.urandom(300_000)
    blob = caller.blob(content)
    for _ in range(3):
        written = caller.post("/fs/write", connection=connection, blob=blob, path=f"{strict.home}/file")
        assert (written.status, written.json) == (200, {})
        assert caller.post("/fs/read", connection=connection, path=f"{strict.home}/file").body == content
        # If the second connection is lost, the next request opens another one.
        running = daemon.client.post("/shell/exec", connection=connection, command="sleep 0; echo $PPID")
        assert running["exitCode"] == 0
    late = caller.post("/shell/exec", connection=connection, command="echo started; sleep 100", timeout=1)
    assert (late.status, late.code) == (500, "command_timeout")
    still = daemon.client.post("/shell/exec", connection=connection, command="echo still here")
    assert still == {"exitCode": 0, "stdout": "still here", "stderr": ""}
    assert len([line for line in strict.server.log().splitlines() if "Accepted publickey" in line]) <= 5
    daemon.client.post("/shell/stop", connection=connection)
    daemon.stop()
    eventually_equal(lambda: strict.server.sessions(), [], "a link outlives its daemon")
