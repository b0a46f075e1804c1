"""Fixtures: one machine with containers for all tests of a process, and the ways to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.host import ContainerHost
from tests.plugins.places import Places


@pytest.fixture(scope="session")
def container_host() -> Iterator[ContainerHost]:
    """The machine that has the containers."""
    host = ContainerHost()
    yield host
    host.close()


@pytest.fixture(scope="session")
def ways(container_host: ContainerHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """The ways to that machine; the daemon's home says nothing of hosts."""
    with pytest.MonkeyPatch.context() as patch:
        home: Path = tmp_path_factory.mktemp("home")
        patch.setenv("HOME", str(home))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        places = Places(container_host.machine)
        yield places
        places.close()
