from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connmgr.fs import files
from connmgr.fs.bodies import Blobs
from connmgr.fs.remote import RemoteFileSystem
from connmgr_local.transport import LocalTransport
from tests.daemon import Daemon
from tests.fs.remote_hosts import stored
from tests.fs.wire import Caller

# A machine with users, sudo and sshd, and the ways to it.
from tests.plugins.elevated.conftest import home_of_the_daemon, machine, places, running_machine, user  # noqa: F401

Write = Callable[..., None]


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Blobs]:
    kept = Blobs(tmp_path / "spool", quota=1 << 30, ttl=600)
    yield kept
    kept.close()


@pytest.fixture
def write(blobs: Blobs) -> Write:
    """A function that writes bytes into a file: ``write(place, path, content, mode, replaces)``."""

    def put(place: RemoteFileSystem, path: bytes, content: bytes, mode: int | None = None, replaces: str = "") -> None:
        with stored(blobs, content) as blob:
            files.write(place, path, blob, mode, replaces)

    return put


@pytest.fixture
def caller(daemon: Daemon) -> Caller:
    """A caller of the shared daemon, with a shell on this machine."""
    one = Caller(daemon)
    one.start()
    return one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty directory, in which the tests' sessions run."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


@pytest.fixture
def here(folder: Path) -> Iterator[RemoteFileSystem]:
    """``folder`` on this machine."""
    transport = LocalTransport()
    yield RemoteFileSystem(transport, bytes(folder))
    transport.close()
