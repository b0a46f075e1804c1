"""Fixtures for every folder whose tests need a machine of their own: a conftest.py imports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.machine import Machine
from tests.plugins.places import Places


@pytest.fixture(scope="session")
def home_of_the_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty home directory, so that no ~/.ssh affects the tests' hosts."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield home


@pytest.fixture(scope="session")
def running_machine() -> Iterator[Machine]:
    running = Machine()
    yield running
    running.close()


@pytest.fixture(scope="session")
def places(running_machine: Machine, home_of_the_daemon: Path) -> Iterator[Places]:
    """The ways to the machine."""
    ways = Places(running_machine)
    yield ways
    ways.close()
