"""Sessions of the local shells; a test runs with each shell of its fixture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from connmgr.engine.session import Session
from tests.engine.shells import SESSIONS, Reused, local_session
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures
from tests.recorder import write_recorder


@pytest.fixture(scope="module")
def reused(request: pytest.FixtureRequest) -> Iterator[Reused]:
    """The sessions of a module's tests."""
    sessions = Reused(request.session)
    yield sessions
    sessions.close()


def _session(request: pytest.FixtureRequest, reused: Reused) -> Iterator[Session]:
    def opening() -> AbstractContextManager[Session]:
        return local_session(request.param)

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OLDPWD", raising=False)  # a service has no terminal
        with reused.get(request.param, opening) as session:
            yield session


posix = pytest.fixture(params=SESSIONS["posix"])(_session)
any_shell = pytest.fixture(params=SESSIONS["any_shell"])(_session)
interpreted = pytest.fixture(params=SESSIONS["interpreted"])(_session)
fish = pytest.fixture(params=SESSIONS["fish"])(_session)
tcsh = pytest.fixture(params=SESSIONS["tcsh"])(_session)
bash = pytest.fixture(params=SESSIONS["bash"])(_session)


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A program that prints its argv, directory and environment, for :func:`tests.recorder.recorded`."""
    return write_recorder(tmp_path / "recorder")


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A symlink to ``old``, beside which is ``new``."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "link").symlink_to("old")
    return tmp_path / "link"
