"""Shells of one daemon on connections that another daemon of the same vault changes or removes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import add
from tests.daemon import Daemon
from tests.deadlines import eventually_equal, eventually_raises
from tests.processes import runs
from tests.shell.test_shells import add_local, exec_text, supervisor

pytestmark = pytest.mark.needs("postgres", "bash")


def change(client: Client, connection: str) -> None:
    client.post("/connection/update", connection=connection, data={"type": "local", "shell": "/bin/bash"})


def remove(client: Client, connection: str) -> None:
    client.post("/connection/remove", connections=[connection])


def refusal(client: Client, connection: str) -> str:
    """Run commands until one is refused, and return its error code."""
    refused = eventually_raises(
        lambda: client.post("/shell/exec", connection=connection, command="true"),
        ClientError,
        "the shell takes commands although its connection was changed or removed",
    )
    return str(refused.code)


@pytest.mark.parametrize("over", ["itself", "what it runs over"])
@pytest.mark.parametrize(("act", "code"), [(change, "no_shell"), (remove, "unknown_connection")])
def test_a_shell_ends_whose_connection_another_daemon_changes(
    daemons: tuple[Daemon, Daemon], act: Callable[[Client, str], None], code: str, over: str
) -> None:
    here, there = (daemon.client for daemon in daemons)
    host = used = add_local(here, "/bin/dash")
    if over != "itself":
        data = {"type": "shellEnvironment", "host": host, "elevated": False}
        used = add(here, "over it", **data)
    here.post("/shell/start", connection=used)
    shell = supervisor(here, used)
    act(there, host)
    assert refusal(here, used) == code
    assert not runs(shell.pid), "the shell was refused, and still runs"
    if act is change and over == "itself":
        here.post("/shell/start", connection=used)
        assert exec_text(here, used, "echo ${BASH_VERSION:+new}") == "new"


def test_a_shell_that_is_started_again_is_one_on_the_data_as_another_daemon_left_it(
    daemons: tuple[Daemon, Daemon],
) -> None:
    here, there = (daemon.client for daemon in daemons)
    connection = add_local(here, "/bin/dash")
    here.post("/shell/start", connection=connection)
    assert exec_text(here, connection, "echo ${BASH_VERSION:+new}") == ""
    change(there, connection)

    def started() -> str:
        here.post("/shell/start", connection=connection)
        try:
            return exec_text(here, connection, "echo ${BASH_VERSION:+new}")
        except ClientError as error:
            # The daemon may notice the change between the two requests.
            return error.code

    eventually_equal(started, "new", "starting the shell leaves one that runs on what the connection was")
