"""Terminals of a daemon: on this machine, over SSH, and as root by sudo over SSH."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.jobs.world import LOCAL, SSH, SUDO, World, world
from tests.terminals.desk import Desk


@pytest.fixture(scope="session")
def running_world() -> Iterator[World]:
    with world() as running:
        yield running


@pytest.fixture(scope="session")
def shared_desk(running_world: World) -> Iterator[Desk]:
    with contextlib.closing(Desk(running_world.url, running_world.auth_file)) as desk:
        yield desk


@pytest.fixture
def desk(shared_desk: Desk) -> Iterator[Desk]:
    """A desk whose terminals are closed after the test."""
    yield shared_desk
    shared_desk.clear()


@pytest.fixture(
    params=[
        LOCAL,
        pytest.param(SSH, marks=pytest.mark.needs("sshd")),
        pytest.param(SUDO, marks=pytest.mark.needs("sshd", "machine", "sudo")),
    ]
)
def place(request: pytest.FixtureRequest, running_world: World) -> str:
    """A connection of each kind."""
    return running_world.connection(request.param, "bash")
