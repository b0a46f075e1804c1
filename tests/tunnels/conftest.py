"""Fixtures of the tests of tunnels: a daemon with an SSH server, and services behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.daemon import Daemon
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_data
from tests.plugins.sshd import Sshd
from tests.ports import reserved_port
from tests.tunnels.services import Service, Tunnels, echo


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An SSH server for the tests of a module."""
    with ssh_server(tmp_path_factory.mktemp("far")) as running:
        yield running


@pytest.fixture(scope="module")
def tunnels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tunnels]:
    """The tunnels of a daemon that the tests of a module share."""
    running = Daemon(tmp_path_factory.mktemp("tunnels"))
    yield Tunnels(running)
    running.stop()


@pytest.fixture(scope="module")
def far(tunnels: Tunnels, server: Sshd) -> str:
    """The connection to the SSH server."""
    return add_ssh(tunnels.daemon, server)


@pytest.fixture
def own_port() -> Iterator[int]:
    """A port that no other program is given, so that it is closed unless the test listens on it."""
    with reserved_port() as number:
        yield number


def add_ssh(daemon: Daemon, server: Sshd, **data: object) -> str:
    """Store a connection to ``server``; return its id."""
    added = {"type": "ssh", **ssh_data(server, server.user), **data}
    id: str = daemon.client.post("/connection/add", name="web", data=added)["connection"]
    return id


@pytest.fixture(scope="module")
def echoing() -> Iterator[Service]:
    """A service that echoes."""
    with closing(Service(echo)) as running:
        yield running
