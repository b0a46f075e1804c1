"""A link that fails under a running command: the client gets an error in bounded time, and the next start works."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import add
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.plugins.machine import Machine
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.relay import Relay
from tests.plugins.sshd import Sshd
from tests.processes import Held

pytestmark = pytest.mark.needs("sshd", "bash")

ERROR_SECONDS = 60.0
SLEEP_SECONDS = f"7654.{os.getpid()}"
"""Seconds that the commands sleep; the process id distinguishes them from other test processes."""
ELEVATED = {"type": "shellEnvironment", "elevated": True, "password": "correct horse battery"}


class Far:
    """An sshd, and a daemon's connections to one of its users, elevated if sudo allows it."""

    def __init__(self, daemon: Daemon, server: Sshd, user: str, elevated: bool) -> None:
        self.daemon = daemon
        self.client = daemon.client
        self.server = server
        self.relay = Relay(server.port)
        self._user = user
        self._elevated = elevated

    def add(self, **fields: Any) -> str:
        data = {"type": "ssh", **ssh_fields(self.server, self._user, keepAlive=1, **fields)}
        id = self._add(data)
        return self._add({**ELEVATED, "host": id}) if self._elevated else id

    def _add(self, data: dict[str, Any]) -> str:
        return add(self.client, "far", **data)

    def start(self, connection: str) -> None:
        self.client.post("/shell/start", connection=connection)

    def echo(self, connection: str) -> str:
        return str(self.client.post("/shell/exec", connection=connection, command="echo hi")["stdout"])

    @contextmanager
    def running(self, connection: str, **options: Any) -> Iterator[list[ClientError]]:
        """Run a long command during the block, which must end it with an error within ``ERROR_SECONDS``."""
        errors: list[ClientError] = []
        waiting = threading.Thread(target=self._exec_sleep, args=(connection, errors), kwargs=options)
        before = len(self._commands())
        waiting.start()
        eventually(
            self._commands, "the command does not run", holds=lambda now: len(now) > before, seconds=ERROR_SECONDS
        )
        yield errors
        waiting.join(ERROR_SECONDS)
        assert not waiting.is_alive(), "the client hangs"
        assert len(errors) == 1

    def _exec_sleep(self, connection: str, errors: list[ClientError], **options: Any) -> None:
        command = f"echo started; sleep {SLEEP_SECONDS}"
        client = Client(self.daemon.url, auth_file=self.daemon.auth_file)
        try:
            client.post("/shell/exec", connection=connection, command=command, **options)
        except ClientError as error:
            errors.append(error)
        finally:
            client.close()

    @staticmethod
    def _commands() -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if process.info["cmdline"] == ["sleep", SLEEP_SECONDS]
        ]

    def close(self) -> None:
        self.relay.close()
        for process in self._commands():  # a shell whose link breaks leaves its command behind
            process.kill()


@pytest.fixture(scope="module")
def faulty_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("faults"))
    yield running
    running.stop()


@pytest.fixture
def plain(faulty_daemon: Daemon, home_of_the_daemon: Path) -> Iterator[Far]:
    """The user who runs the tests."""
    with ssh_server(home_of_the_daemon) as server:
        yield Far(faulty_daemon, server, server.user, elevated=False)


@pytest.fixture
def elevated(faulty_daemon: Daemon, running_machine: Machine) -> Iterator[Far]:
    """A user of the machine who becomes root by sudo."""
    user = running_machine.add_user()
    running_machine.allow(f"{user.name} ALL=(ALL) ALL")
    with closing(Sshd(inside=running_machine.inside())) as server:
        yield Far(faulty_daemon, server, user.name, elevated=True)


PLAIN = pytest.param("plain", id="ssh")
ELEVATED_TOO = pytest.param("elevated", id="elevated", marks=pytest.mark.needs("machine", "sudo"))
KINDS = pytest.mark.parametrize("far", [PLAIN, ELEVATED_TOO], indirect=True)


@pytest.fixture(params=[PLAIN])
def far(request: pytest.FixtureRequest) -> Iterator[Far]:
    reached: Far = request.getfixturevalue(request.param)
    with closing(reached):
        yield reached


def check_lost(errors: list[ClientError]) -> None:
    assert (errors[0].status, errors[0].code) == (500, "shell_lost"), errors[0].message


FAULTS: dict[str, Callable[[Far], None]] = {
    "sessions killed": lambda far: far.server.kill_sessions(),
    "connection reset": lambda far: far.relay.reset(),
    "host frozen": lambda far: far.server.freeze(),
}


@KINDS
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_link_loses_the_shell_and_the_next_start_opens_another(far: Far, fault: str) -> None:
    connection = far.add(port=far.relay.port) if fault == "connection reset" else far.add()
    far.start(connection)
    with far.running(connection) as errors:
        FAULTS[fault](far)
    check_lost(errors)
    far.server.thaw()
    far.start(connection)
    assert far.echo(connection) == "hi"


@KINDS
def test_timeout_on_a_frozen_host(far: Far) -> None:
    connection = far.add()
    far.start(connection)
    with far.running(connection, timeout=2) as errors:
        far.server.freeze()
    check_lost(errors)
    far.server.thaw()
    far.start(connection)
    assert far.echo(connection) == "hi"


@KINDS
def test_host_gone_and_back(far: Far) -> None:
    connection = far.add()
    far.start(connection)
    with far.running(connection) as errors:
        far.server.stop()
    check_lost(errors)
    with pytest.raises(ClientError) as caught:
        far.start(connection)
    assert caught.value.code == "host_refused"
    far.server.start()
    far.start(connection)
    assert far.echo(connection) == "hi"


def test_an_idle_session_whose_link_broke_is_replaced(far: Far) -> None:
    connection = far.add()
    far.start(connection)
    far.server.kill_sessions()
    far.start(connection)
    assert far.echo(connection) == "hi"


ROUNDS = 8


def rounds(far: Far, one: Callable[[], None]) -> None:
    for _ in range(3):
        one()
    held = Held(far.daemon.pid)
    for _ in range(ROUNDS):
        one()
    held.await_release(ROUNDS)


@pytest.mark.needs("descriptors")
@KINDS
def test_rounds_leave_nothing_behind(far: Far) -> None:
    connection = far.add()

    def one() -> None:
        far.start(connection)
        assert far.echo(connection) == "hi"
        far.client.post("/shell/stop", connection=connection)

    rounds(far, one)


@pytest.mark.parametrize("far", [ELEVATED_TOO], indirect=True)
def test_rounds_of_broken_links_leave_nothing_behind(far: Far) -> None:
    connection = far.add()

    def one() -> None:
        far.start(connection)
        far.server.kill_sessions()
        with pytest.raises(ClientError) as caught:
            far.echo(connection)
        assert caught.value.code in {"shell_lost", "no_shell"}

    rounds(far, one)
