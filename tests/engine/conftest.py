from __future__ import annotations

from collections.abc import Iterator

import pytest

from connmgr.engine.session import Session
from tests.engine.shells import ALL, OTHER, POSIX, local_session
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures


@pytest.fixture(params=POSIX)
def posix(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session of each shell that reads the POSIX shell language."""
    with local_session(request.param) as session:
        yield session


@pytest.fixture(params=ALL)
def any_shell(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session of each shell that the engine speaks."""
    with local_session(request.param) as session:
        yield session


@pytest.fixture(params=OTHER)
def interpreted(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session of each shell that /bin/sh supervises."""
    with local_session(request.param) as session:
        yield session


@pytest.fixture
def bash() -> Iterator[Session]:
    with local_session("bash") as session:
        yield session


@pytest.fixture(params=OTHER[:1])
def fish(request: pytest.FixtureRequest) -> Iterator[Session]:
    with local_session(request.param) as session:
        yield session


@pytest.fixture(params=OTHER[1:])
def tcsh(request: pytest.FixtureRequest) -> Iterator[Session]:
    with local_session(request.param) as session:
        yield session
