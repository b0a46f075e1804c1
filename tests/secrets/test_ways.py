"""Changing a connection on the way of a secret needs access to that secret, on a running daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.daemon import Daemon

PASSPHRASES = {"alice": "alice's long passphrase", "bob": "bob's long passphrase"}
HOST = {"type": "ssh", "host": "127.0.0.1", "port": 9, "user": "u"}
ELSEWHERE = {"host": "127.0.0.2", "port": 10}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for a vault with the users alice and bob."""
    daemon = Daemon(tmp_path_factory.mktemp("ways"))
    with session(daemon) as client:
        carrier, elevated = chain(client)[1:]
        client.post("/connection/update", connection=carrier, data=HOST | ELSEWHERE, validate=False)
        assert refusal(client, "/shell/start", connection=elevated).code == "host_refused", (
            "a vault without users asks for something before what a secret's way leads through may be changed"
        )
        client.post("/vault/user/add", user="alice", passphrase=PASSPHRASES["alice"])
        client.post("/vault/unlock", user="alice", passphrase=PASSPHRASES["alice"])
        client.post("/vault/user/add", user="bob", passphrase=PASSPHRASES["bob"])
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def alice(daemon: Daemon) -> Iterator[Client]:
    """A session that has unlocked alice."""
    with session(daemon, "alice") as client:
        yield client


def session(daemon: Daemon, user: str | None = None) -> Client:
    client = Client(daemon.url, auth_file=daemon.auth_file)
    if user:
        client.post("/vault/unlock", user=user, passphrase=PASSPHRASES[user])
    return client


def refusal(client: Client, path: str, **fields: Any) -> ClientError:
    with pytest.raises(ClientError) as refused:
        client.post(path, **fields)
    return refused.value


def chain(client: Client, user: str = "u") -> tuple[str, str, str]:
    """Add a gateway, a connection through it, and an elevated one in that with a password of the client's user."""

    def add(name: str, data: dict[str, Any]) -> str:
        return str(client.post("/connection/add", name=name, data=data, validate=False)["connection"])

    gateway = add("gateway", {**HOST, "user": user})
    carrier = add("carrier", {**HOST, "user": user, "gateway": gateway})
    elevated = {"type": "shellEnvironment", "host": carrier, "elevated": True, "password": "hunter2"}
    return gateway, carrier, add("elevated", elevated)


@pytest.mark.parametrize(("changed", "user"), [("gateway", None), ("carrier", "bob")])
def test_a_way_is_changed_by_those_who_may_open_what_goes_over_it(
    daemon: Daemon, alice: Client, changed: str, user: str | None
) -> None:
    with session(daemon, user) as other:
        gateway, carrier, elevated = chain(alice, "alice")
        id = {"gateway": gateway, "carrier": carrier}[changed]
        before = alice.post("/connection/info", connections=[id])["infos"][0]["rawData"]
        error = refusal(other, "/connection/update", connection=id, data=before | ELSEWHERE, validate=False)
        assert (error.status, error.code, error.details) == (400, "secret_locked", {"principals": ["alice"]}), (
            "the password of an elevated connection can be led to another host"
        )
        assert alice.post("/connection/info", connections=[id])["infos"][0]["rawData"] == before
        other.post("/connection/update", connection=id, name="another name", data=before, validate=False)
        alice.post("/connection/update", connection=id, data=before | ELSEWHERE, validate=False)
        assert refusal(alice, "/shell/start", connection=elevated).code == "host_refused"
        other.post("/connection/remove", connections=[gateway])
        assert refusal(alice, "/shell/start", connection=elevated).code == "unknown_connection"


def test_a_secret_cannot_be_taken_along_to_another_carrier(daemon: Daemon, alice: Client) -> None:
    with session(daemon) as stranger:
        *_, elevated = chain(alice, "again")
        own = stranger.post("/connection/add", name="own", data=HOST | {"user": "own"}, validate=False)["connection"]
        stolen = alice.post("/connection/info", connections=[elevated])["infos"][0]["rawData"] | {"host": own}
        for path, fields in (("/connection/update", {"connection": elevated}), ("/connection/add", {"name": "stolen"})):
            assert refusal(stranger, path, data=stolen, validate=False, **fields).code == "secret_locked"


def test_what_runs_with_the_rights_of_a_locked_secret_is_changed_by_those_who_may_open_it(
    daemon: Daemon, alice: Client
) -> None:
    with session(daemon) as stranger:
        *_, elevated = chain(alice, "rights")
        inner = {"type": "shellEnvironment", "host": elevated, "commands": ["true"]}
        id = alice.post("/connection/add", name="inner", data=inner, validate=False)["connection"]
        hostile = inner | {"commands": ["id >/tmp/whose"]}
        error = refusal(stranger, "/connection/update", connection=id, data=hostile, validate=False)
        assert (error.code, error.details) == ("secret_locked", {"principals": ["alice"]}), (
            "a session that may not start a connection chooses what it runs with its users' rights"
        )
        stranger.post("/connection/update", connection=id, name="inner, renamed", data=inner, validate=False)
        alice.post("/connection/update", connection=id, data=hostile, validate=False)
        stranger.post("/connection/remove", connections=[id])
