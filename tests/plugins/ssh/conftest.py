"""Fixtures of the tests of the SSH plugin: a real sshd, users, and a home directory that is not the tester's."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from connmgr.plugin import Transport
from connmgr_ssh import Ssh, config
from connmgr_ssh.transport import SshTransport
from tests.plugins import users
from tests.plugins.sshd import SshAgent, Sshd, privilege_separation
from tests.plugins.users import User

StartSshd = Callable[..., Sshd]
Connect = Callable[..., SshTransport]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory of the daemon's user, without a system configuration and an agent."""
    path = tmp_path / "home"
    (path / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setattr(config, "SYSTEM", tmp_path / "etc")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return path


@pytest.fixture(scope="session")
def run_sshd() -> Iterator[None]:
    """The directory that sshd needs to run as root."""
    with privilege_separation():
        yield


@pytest.fixture(scope="session")
def login(request: pytest.FixtureRequest) -> str:
    """The login's user: a temporary one with empty start-up files if the tests run as root."""
    return str(request.getfixturevalue("user").name) if os.geteuid() == 0 else getpass.getuser()


@pytest.fixture(scope="session")
def sshd(run_sshd: None, login: str) -> Iterator[Sshd]:
    """An sshd with default options, for tests that leave it unchanged."""
    server = Sshd(user=login)
    yield server
    server.close()


@pytest.fixture
def start_sshd(run_sshd: None, login: str) -> Iterator[StartSshd]:
    """A function that starts an sshd of the test's own: ``start_sshd({"MaxSessions": "1"}, host_keys=("rsa",))``."""
    started: list[Sshd] = []

    def start(options: Mapping[str, str] | None = None, **more: Any) -> Sshd:
        started.append(Sshd(options, **{"user": login, **more}))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def user() -> Iterator[User]:
    """A user with a password, whose login shell is bash."""
    created = users.create()
    yield created
    users.remove(created)


@pytest.fixture
def agent() -> Iterator[SshAgent]:
    """A running ssh-agent."""
    running = SshAgent()
    yield running
    running.close()


@pytest.fixture
def ssh(tmp_path: Path) -> Ssh:
    """The connection type, with a data directory of its own."""
    kind = Ssh()
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    kind.prepare(directory)
    return kind


@pytest.fixture
def connect(ssh: Ssh) -> Iterator[Connect]:
    """A function that opens a link to an sshd, with its client key and its host key pinned unless told otherwise.

    ``connect(sshd, via=..., timeout=..., password=...)``; a field that is None is left out.
    """
    opened: list[Transport] = []

    def open_link(server: Sshd, *, via: Transport | None = None, timeout: float = 20, **fields: Any) -> SshTransport:
        link = ssh.open(data_for(ssh, server, **fields), via, timeout=timeout)
        opened.append(link)
        assert isinstance(link, SshTransport)
        return link

    yield open_link
    for link in reversed(opened):
        link.close()


def data_for(ssh: Ssh, server: Sshd, **fields: Any) -> dict[str, Any]:
    """Return validated data of a connection to ``server``."""
    given = {
        "host": "127.0.0.1",
        "port": server.port,
        "user": server.user,
        "identity": {"file": str(server.client_key)},
        "hostKey": public_key(server.host_keys[0]),
        **fields,
    }
    loaded = ssh.schema().load({name: value for name, value in given.items() if value is not None})
    assert isinstance(loaded, dict)
    return loaded


def public_key(private: Path) -> str:
    """Return type and base64 of the public key beside a private one."""
    return " ".join(private.with_name(private.name + ".pub").read_text().split()[:2])
