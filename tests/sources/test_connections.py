"""Connections whose secrets are elsewhere: opened by them, and what fails is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import ClientError
from tests.conftest import StartDaemon
from tests.plugins import users
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd, privilege_separation


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    user = users.create() if os.geteuid() == 0 else None
    with privilege_separation():
        server = Sshd(user=user.name if user else None)
        yield server
        server.close()
    if user:
        users.remove(user)


@pytest.mark.needs("sshd")
def test_a_key_is_fetched_at_each_login_and_kept_nowhere(sshd: Sshd, start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(home=tmp_path / "home")
    log, key = tmp_path / "log", sshd.client_key.read_text()
    argv = ["sh", "-c", 'echo fetched >>"$0"; cat "$1"', str(log), str(sshd.client_key)]
    reference = {"from": {"source": "command", "argv": argv}}
    data = {"type": "ssh", **ssh_fields(sshd, sshd.user), "identity": {"key": reference}}
    id = daemon.client.post("/connection/add", name="web", data=data)["connection"]
    assert not log.exists()
    daemon.client.shell.start(id)
    for command in ("hello", "again"):
        assert daemon.client.shell.exec(id, f"echo {command}").stdout == command
    # A link that is open needs no further secret; another one does.
    assert log.read_text() == "fetched\n"
    other = daemon.client.post("/connection/add", name="other", data={**data, "keepAlive": 11})["connection"]
    daemon.client.shell.start(other)
    assert daemon.client.shell.exec(other, "echo other").stdout == "other"
    assert log.read_text() == "fetched\n" * 2
    # Neither the key nor a part of it is in the vault's files or in the daemon's log.
    part = key.splitlines()[3]
    for path in (tmp_path / "home").rglob("*"):
        if path.is_file():
            assert part.encode() not in path.read_bytes(), path

    sshd.client_key.unlink()
    lost = daemon.client.post("/connection/add", name="lost", data={**data, "keepAlive": 12})["connection"]
    with pytest.raises(ClientError, match=r"The secret source command failed: the program exited with 1") as failure:
        daemon.client.shell.start(lost)
    assert failure.value.code == "secret_unavailable"
    over = {"type": "shellEnvironment", "host": lost, "commands": [":"]}
    inside = daemon.client.post("/connection/add", name="inside", data=over)["connection"]
    with pytest.raises(ClientError, match=r"lost: The secret source command failed"):
        daemon.client.shell.start(inside)
