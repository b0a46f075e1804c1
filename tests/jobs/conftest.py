"""The jobs of a link, in a home directory for the test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from connmgr.engine.rpc import Helpers
from connmgr.errors import ConnmgrError
from connmgr.jobs.launch import Launch
from connmgr.jobs.remote import RemoteJob, RemoteJobs
from connmgr.plugin import Transport
from connmgr_local.transport import LocalTransport
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.engine.conftest import any_shell, posix, reused  # noqa: F401 - fixtures


def new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Read:
    seen: RemoteJob
    stdout: bytes
    stderr: bytes
    directory: bytes


class Jobs:
    """The jobs of a transport, and those that the test has started."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.helpers = Helpers()
        self.remote = RemoteJobs(transport, self.helpers)
        self._started: list[str] = []

    def start(self, launch: Launch) -> str:
        self._started.append(launch.id)
        self.remote.start(launch, DEADLINE_SECONDS)
        return launch.id

    def look(self, id: str) -> RemoteJob:
        return self.remote.look([id], DEADLINE_SECONDS)[id]

    def read(self, id: str, max_bytes: int = 4 << 20) -> Read:
        return Read(*self.remote.read(id, 0, 0, max_bytes, DEADLINE_SECONDS))

    def await_that(self, id: str, holds: Callable[[Read], bool]) -> Read:
        """Wait until ``holds`` returns true for a job, and return the job."""
        return eventually(lambda: self.read(id), "the job never came there", holds=holds)

    def ended(self, id: str) -> Read:
        """Wait until a job has ended, and its streams too."""
        return self.await_that(id, lambda read: read.seen.state != "running" and read.seen.stdout.ended)

    def done(self, launch: Launch) -> Read:
        return self.ended(self.start(launch))

    def close(self) -> None:
        """Kill and remove the jobs that the test has started."""
        for id, seen in self.remote.look(self._started, DEADLINE_SECONDS).items():
            if seen.state in ("running", "lost"):
                with suppress(ConnmgrError):
                    self.remote.kill(id, "KILL", None, DEADLINE_SECONDS)
        self.remote.remove(self._started, DEADLINE_SECONDS)
        self.helpers.close()
        self.transport.close()


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs on this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    of_the_link = Jobs(LocalTransport())
    yield of_the_link
    of_the_link.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory of the jobs of :func:`jobs`."""
    return tmp_path / ".local/state/connmgr/jobs"
