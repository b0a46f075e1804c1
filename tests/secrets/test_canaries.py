"""Secrets that pass through a daemon at log level debug are found nowhere afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL, add
from tests.conftest import StartDaemon
from tests.daemon import PROGRAM, Daemon
from tests.plugins import users
from tests.plugins.sshd import Sshd, keygen, privilege_separation
from tests.plugins.users import User
from tests.secrets.canaries import Canaries


class Teller:
    """A client that records its errors."""

    def __init__(self, daemon: Daemon) -> None:
        self._client = Client(daemon.url, auth_file=daemon.auth_file)
        self.told = ""
        self.codes: list[str] = []

    def post(self, path: str, **fields: Any) -> Any:
        try:
            return self._client.post(path, **fields)
        except ClientError as error:
            self.codes.append(error.code)
            self.told += f"{error.message} {error.details}\n"
            return {}

    def token(self) -> str:
        assert self._client.session_token is not None
        return self._client.session_token

    def close(self) -> None:
        self._client.close()


@contextmanager
def teller(daemon: Daemon, canaries: Canaries) -> Iterator[Teller]:
    """A client whose errors and processes are searched at the end."""
    client = Teller(daemon)
    with canaries.watched_processes() as seen:
        yield client
        canaries.also(client.token())
    client.close()
    assert not canaries.within(client.told.encode()), client.told
    assert seen | canaries.found_in_processes() == set()


@pytest.fixture
def daemon_program() -> tuple[str, ...]:
    """A separate process, whose environment is searched too."""
    return PROGRAM


@pytest.fixture
def daemon(start_daemon: StartDaemon, tmp_path: Path) -> Daemon:
    return start_daemon("--log-level", "debug", "--debug", home=tmp_path / "home")


def locked_key(directory: Path, canaries: Canaries) -> str:
    """Return a private key with a canary as passphrase, whose lines are canaries too."""
    path = keygen(directory / "key", passphrase=canaries.new())
    key = path.read_text()
    path.unlink()
    canaries.also(*key.splitlines()[3:-2])
    return key


@pytest.mark.slow
def test_twenty_secrets_leave_no_trace(daemon: Daemon, tmp_path: Path, closed_port: int) -> None:
    canaries = Canaries()
    new = canaries.new
    key = locked_key(tmp_path, canaries)
    closed = {"type": "ssh", "host": "127.0.0.1", "port": closed_port, "user": "u"}
    with teller(daemon, canaries) as client:
        first, second, other = new(), new(), new()
        secrets = [client.post("/secret/encrypt", value=new())["encrypted"] for _ in range(3)]
        for encrypted in secrets:
            assert client.post("/secret/decrypt", encrypted=encrypted)["decrypted"] in canaries.given
        client.post("/vault/user/add", user="alice", passphrase=first)
        client.post("/vault/unlock", user="alice", passphrase=new())
        client.post("/vault/unlock", user="alice", passphrase=first)
        client.post("/vault/user/add", user="bob", passphrase=other)
        client.post("/vault/user/passphrase", user="alice", passphrase=first, newPassphrase=second)
        client.post("/vault/user/passphrase", user="alice", passphrase=new(), newPassphrase=new())
        secrets.append(client.post("/secret/encrypt", value=new(), principals=["alice", "bob"])["encrypted"])
        client.post("/secret/decrypt", encrypted={**secrets[0], "secret": {"encryptedValue": new(), "type": "locked"}})
        client.post("/secret/encrypt", value=new(), principals=["mallory"])
        client.post("/secret/encrypt", value=new(), unknown=new())
        with_password = {**closed, "password": new()}
        uuid = add(client, "c", **with_password)
        again = client.post("/connection/add", name="d", data=with_password, validate=False)
        assert again == {"connection": uuid, "added": False}
        client.post("/connection/add", name="e", data={**closed, "password": new()}, validate=True)
        client.post("/connection/add", name="f", data={**closed, "password": new(), "port": "x"}, validate=False)
        client.post("/connection/add", name="g", data={**closed, "password": {"text": new()}}, validate=False)
        with_key = {**closed, "identity": {"key": key, "passphrase": new()}}
        client.post("/connection/update", connection=uuid, data=with_key)
        client.post("/connection/info", connections=[uuid])
        client.post("/shell/start", connection=uuid)
        client.post("/shell/start", connection=LOCAL)
        ran = client.post("/shell/exec", connection=LOCAL, command="cat | wc -c", stdin=new())
        client.post("/connection/remove", connections=[uuid])
    assert ran["exitCode"] == 0
    assert len(canaries.given) >= 20
    assert sorted(set(client.codes)) == [
        "host_refused",
        "integrity",
        "invalid_request",
        "unknown_principal",
        "unlock_failed",
    ]
    log = daemon.stderr()
    assert "/secret/encrypt" in log, "nothing was logged that could be searched"
    assert canaries.found_in_files([tmp_path]) == []


@pytest.fixture
def people() -> Iterator[list[User]]:
    """Two users of this machine."""
    made: list[User] = []
    yield made
    for user in made:
        users.remove(user)


@pytest.mark.needs("root", "sshd", "su")
def test_passwords_of_real_logins_leave_no_trace(daemon: Daemon, tmp_path: Path, people: list[User]) -> None:
    canaries = Canaries()
    people += [users.create(password=canaries.new()) for _ in range(2)]
    key = locked_key(tmp_path, canaries)
    with privilege_separation():
        sshd = Sshd({"PasswordAuthentication": "yes"}, user=people[0].name)
        try:
            _log_in(daemon, canaries, people, sshd, key)
            places = [tmp_path, sshd.directory, *(user.home for user in people)]
            assert canaries.found_in_files(places) == []
        finally:
            sshd.close()


def _log_in(daemon: Daemon, canaries: Canaries, people: list[User], sshd: Sshd, key: str) -> None:
    first, second = people
    remote = {"type": "ssh", "host": "127.0.0.1", "port": sshd.port, "user": first.name}
    remote |= {"hostKeyChecking": "acceptNew"}
    with teller(daemon, canaries) as client:
        data = {**remote, "password": first.password}
        host = client.post("/connection/add", name="remote", data=data, validate=True)["connection"]
        client.post("/connection/add", name="wrong", data={**remote, "password": canaries.new()}, validate=True)
        identity = {"key": key, "passphrase": canaries.new()}
        client.post("/connection/add", name="locked key", data={**remote, "identity": identity}, validate=True)
        elevated = {"type": "shellEnvironment", "host": host, "elevated": True, "method": "su", "user": second.name}
        data = {**elevated, "password": second.password}
        as_second = add(client, "elevated", **data)
        client.post("/connection/add", name="wrong too", data={**elevated, "password": canaries.new()}, validate=True)
        client.post("/shell/start", connection=as_second)
        ran = client.post("/shell/exec", connection=as_second, command="id -un; env; tr '\\0' ' ' < /proc/$$/cmdline")
        client.post("/shell/stop", connection=as_second)
    assert client.codes == ["auth_failed"] * 3, client.told
    assert ran["stdout"].splitlines()[0] == second.name
    assert not canaries.within(ran["stdout"].encode())
    assert os.geteuid() == 0
