"""All shells of an SSH connection share one link, as far as the server allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from connmgr.client import Client, ClientError
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually_equal
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd")

NAMES = [f"s{number}" for number in range(16)]


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Sshd]:
    """A server that allows many sessions on a connection."""
    with ssh_server(tmp_path) as server:
        yield server


def added(client: Client, server: Sshd) -> str:
    return client.connection.add("far", {"type": "ssh", **ssh_fields(server, server.user)})


def logins(server: Sshd) -> int:
    """Count the connections that have been opened to the server."""
    return server.log().count("Accepted publickey")


def at_once(daemon: Daemon, names: list[str], act: Callable[[Client, str], object]) -> None:
    wrong: list[str] = []

    def run(name: str) -> None:
        with Client(daemon.url, auth_file=daemon.auth_file) as own:
            try:
                act(own, name)
            except ClientError as error:
                wrong.append(f"{name}: {error.code}: {error.message}")

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not wrong


def kept_apart(client: Client, connection: str, names: list[str]) -> None:
    for name in names:
        client.shell.exec(connection, f"cd /; export WHO={name}", session=name)
    for name in names:
        assert client.shell.exec(connection, "echo $PWD $WHO", session=name).stdout == f"/ {name}"


def test_sixteen_at_once_are_over_one_connection(clean_daemon: Daemon, roomy: Sshd) -> None:
    client = clean_daemon.client
    connection = added(client, roomy)
    at_once(clean_daemon, NAMES, lambda own, name: own.shell.start(connection, session=name))
    kept_apart(client, connection, NAMES)
    assert client.fs.read(connection, "/etc/passwd", session=NAMES[3])
    assert logins(roomy) == 1
    client.shell.stop(connection, all=True)
    eventually_equal(roomy.sessions, [], "the connection outlives its shells")
    client.shell.start(connection)
    assert logins(roomy) == 2


def test_after_a_stop_of_all_the_next_shell_logs_in_although_a_pipe_keeps_the_link(
    clean_daemon: Daemon, roomy: Sshd
) -> None:
    client = clean_daemon.client
    connection = added(client, roomy)
    client.shell.start(connection)
    with client.shell.pipe(connection, "cat"):
        client.shell.stop(connection, all=True)
        client.shell.start(connection)
        assert logins(roomy) == 2


def test_the_link_lasts_as_long_as_one_shell(clean_daemon: Daemon, roomy: Sshd) -> None:
    client = clean_daemon.client
    connection = added(client, roomy)
    for name in ("a", "b"):
        client.shell.start(connection, session=name)
    assert client.fs.stat(connection, "/", session="a").type == "directory"
    client.shell.stop(connection, session="a")
    assert client.fs.stat(connection, "/", session="b").type == "directory"
    assert client.shell.exec(connection, "echo on", session="b").stdout == "on"
    client.shell.start(connection)
    assert logins(roomy) == 1


@pytest.mark.parametrize("sessions", ["1", "2", "3"])
def test_where_few_fit_on_a_connection_there_are_more_connections(
    clean_daemon: Daemon, tmp_path: Path, sessions: str
) -> None:
    client, names = clean_daemon.client, ["a", "b", "c", "d"]
    with ssh_server(tmp_path, MaxSessions=sessions) as server:
        connection = added(client, server)
        at_once(clean_daemon, names, lambda own, name: own.shell.start(connection, session=name))
        kept_apart(client, connection, names)
        for name in names:
            with pytest.raises(ClientError) as caught:
                client.shell.exec(connection, "sleep 1000 | cat", timeout=0.3, session=name)
            assert caught.value.code == "command_timeout"
            client.fs.upload(connection, name.encode(), f"{tmp_path}/{name}", session=name)
            assert client.fs.read(connection, f"{tmp_path}/{name}", session=name) == name.encode()
        kept_apart(client, connection, names)
        client.shell.stop(connection, all=True)
        eventually_equal(server.sessions, [], "connections outlive their shells")


def test_a_server_that_takes_no_session_says_so(clean_daemon: Daemon, tmp_path: Path) -> None:
    client = clean_daemon.client
    with ssh_server(tmp_path, MaxSessions="0") as server:
        connection = added(client, server)
        with pytest.raises(ClientError) as caught:
            client.shell.start(connection)
        assert caught.value.code == "channel_refused"
        assert logins(server) == 1
        eventually_equal(server.sessions, [], "a connection without a shell stays open")


def test_all_are_lost_with_the_link_and_start_again_over_a_new_one(clean_daemon: Daemon, roomy: Sshd) -> None:
    client, names = clean_daemon.client, NAMES[:4]
    connection = added(client, roomy)
    for name in names:
        client.shell.start(connection, session=name)
    roomy.kill_sessions()
    eventually_equal(
        lambda: {one.status.state for one in client.shell.list(connection)}, {"lost"}, "they are not shown as lost"
    )
    at_once(clean_daemon, names, lambda own, name: own.shell.start(connection, session=name))
    kept_apart(client, connection, names)
    assert logins(roomy) == 2


def test_a_command_that_loses_its_link_is_told_and_the_next_start_opens_another(
    clean_daemon: Daemon, roomy: Sshd
) -> None:
    client = clean_daemon.client
    connection = added(client, roomy)
    for name in ("a", "b"):
        client.shell.start(connection, session=name)
    roomy.kill_sessions()
    with pytest.raises(ClientError) as caught:
        client.shell.exec(connection, "true", session="a")
    assert caught.value.code == "shell_lost"
    client.shell.start(connection, session="a")
    assert client.shell.exec(connection, "echo a", session="a").stdout == "a"
    client.shell.start(connection, session="b")
    assert client.shell.exec(connection, "echo b", session="b").stdout == "b"
    assert logins(roomy) == 2


def test_a_link_that_answers_no_more_is_not_shared_any_longer(start_daemon: StartDaemon, roomy: Sshd) -> None:
    client = start_daemon("--start-timeout", "5").client
    connection = added(client, roomy)
    client.shell.start(connection)
    frozen = roomy.sessions()
    for process in frozen:
        process.suspend()
    with pytest.raises(ClientError) as caught:
        client.shell.start(connection, session="a")
    assert caught.value.code == "connect_timeout"
    client.shell.start(connection, session="a")
    assert client.shell.exec(connection, "echo on", session="a").stdout == "on"
    for process in frozen:
        process.resume()
    assert client.shell.exec(connection, "echo still", timeout=60).stdout == "still"
    assert logins(roomy) == 2


def test_a_link_is_lost_with_the_gateway_that_it_goes_through(
    clean_daemon: Daemon, roomy: Sshd, tmp_path_factory: pytest.TempPathFactory
) -> None:
    client = clean_daemon.client
    with ssh_server(tmp_path_factory.mktemp("gateway")) as between:
        gateway = added(client, between)
        fields = {**ssh_fields(roomy, roomy.user), "gateway": gateway}
        connection = client.connection.add("behind", {"type": "ssh", **fields})
        for name in ("a", "b"):
            client.shell.start(connection, session=name)
        between.kill_sessions()
        for name in ("a", "b"):
            client.shell.start(connection, session=name)
        kept_apart(client, connection, ["a", "b"])
        assert (logins(between), logins(roomy)) == (2, 2)


def test_a_connection_that_is_changed_leaves_no_link(clean_daemon: Daemon, roomy: Sshd) -> None:
    client = clean_daemon.client
    connection = added(client, roomy)
    for name in ("a", "b"):
        client.shell.start(connection, session=name)
    data = {"type": "ssh", **ssh_fields(roomy, roomy.user, connectTimeout=7)}
    client.connection.update(connection, data=data)
    assert not client.shell.list(connection)
    eventually_equal(roomy.sessions, [], "the old link stays open")
    client.shell.start(connection, session="a")
    assert logins(roomy) == 2
    assert psutil.pid_exists(client.shell.list(connection)[0].pid)
