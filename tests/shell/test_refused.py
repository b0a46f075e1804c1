"""A caller who may not open a connection's secrets can change nothing of its shells."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL, add
from tests.daemon import Daemon

PASSPHRASE = "correct horse battery staple"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a user, whom its client has unlocked."""
    running = Daemon(tmp_path_factory.mktemp("guarded"))
    running.client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
    running.client.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
    yield running
    running.stop()


@pytest.fixture
def stranger(guarded: Daemon) -> Iterator[Client]:
    """A client that has unlocked no user."""
    with Client(guarded.url, auth_file=guarded.auth_file) as client:
        yield client


@pytest.fixture
def gateway() -> Iterator[socket.socket]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def state(client: Client, connection: str) -> Any:
    return client.post("/connection/info", connections=[connection])["infos"][0]["state"]


def assert_refused(stranger: Client, connection: str) -> None:
    with pytest.raises(ClientError) as refused:
        stranger.post("/connection/refresh", connection=connection)
    assert refused.value.code == "secret_locked"


def test_refresh_leaves_the_state_of_a_running_shell_as_it_is(guarded: Daemon, stranger: Client) -> None:
    client = guarded.client
    connection = add(client, "own", type="shellEnvironment", host=LOCAL, elevated=False, password="secret")
    client.post("/shell/start", connection=connection)
    before = state(client, connection)
    assert_refused(stranger, connection)
    assert state(client, connection) == before, "a caller without access has changed what is told of a connection"


def test_refresh_reaches_no_machine_and_leaves_the_state_as_it_is(
    guarded: Daemon, stranger: Client, gateway: socket.socket
) -> None:
    port = gateway.getsockname()[1]
    ssh = {"type": "ssh", "host": "127.0.0.1", "user": "u", "connectTimeout": 1, "port": port}
    way = add(guarded.client, "gateway", **ssh)
    connection = add(guarded.client, "target", **ssh, gateway=way, password="secret")
    assert_refused(stranger, connection)
    assert state(guarded.client, connection) == {}
    with pytest.raises(BlockingIOError):
        gateway.accept()
