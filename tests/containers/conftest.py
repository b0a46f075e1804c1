"""One machine with containers for all tests of a process, and the ways to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.plugin import Transport
from tests.containers.host import ContainerHost
from tests.plugins.machine import Inhabitant
from tests.plugins.places import SSH, Places, elevate


@pytest.fixture(scope="session")
def container_host() -> Iterator[ContainerHost]:
    """The machine that has the containers."""
    host = ContainerHost()
    yield host
    host.close()


@pytest.fixture(scope="session")
def ways(container_host: ContainerHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """The ways to that machine, without an SSH configuration."""
    with pytest.MonkeyPatch.context() as patch:
        home: Path = tmp_path_factory.mktemp("home")
        patch.setenv("HOME", str(home))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        places = Places(container_host.machine)
        yield places
        places.close()


@pytest.fixture(scope="session")
def operator(container_host: ContainerHost) -> Inhabitant:
    """A user of the machine who may become root with a password."""
    user = container_host.machine.add_user("/bin/sh")
    container_host.machine.allow(f"{user.name} ALL=(ALL:ALL) ALL")
    return user


@pytest.fixture(scope="session")
def over_ssh(container_host: ContainerHost, ways: Places) -> Iterator[Transport]:
    """The machine's root by a login; closing a connection over it leaves it open."""
    with ways.reach(SSH, container_host.machine.root) as transport:
        yield transport


@pytest.fixture(scope="session")
def sudo_over_ssh(ways: Places, operator: Inhabitant) -> Iterator[Transport]:
    """The machine's root by sudo; closing a connection over it leaves it open."""
    with ways.reach(SSH, operator) as transport:
        yield elevate(transport, method="sudo", password=operator.password)
