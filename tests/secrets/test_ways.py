"""Changing a connection on the way of a secret needs access to that secret, on a running daemon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connmgr.client import Client
from tests.api.wire import add, refused
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
        assert refused(client, "/shell/start", connection=elevated).code == "host_refused", (
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


def chain(client: Client, user: str = "u") -> tuple[str, str, str]:
    """Add a gateway, a connection through it, and an elevated one in that with a password of the client's user."""
    gateway = add(client, "gateway", **{**HOST, "user": user})
    carrier = add(client, "carrier", **{**HOST, "user": user, "gateway": gateway})
    elevated = {"type": "shellEnvironment", "host": carrier, "elevated": True, "password": "hunter2"}
    return gateway, carrier, add(client, "elevated", **elevated)


@pytest.mark.parametrize(("changed", "user"), [("gateway", None), ("carrier", "bob")])
def test_a_way_is_changed_by_those_who_may_open_what_goes_over_it(
    daemon: Daemon, alice: Client, changed: str, user: str | None
) -> None:
    with session(daemon, user) as other:
        gateway, carrier, elevated = chain(alice, "alice")
        id = {"gateway": gateway, "carrier": carrier}[changed]
        before = alice.post("/connection/info", connections=[id])["infos"][0]["rawData"]
        error = refused(other, "/connection/update", connection=id, data=before | ELSEWHERE, validate=False)
        assert (error.status, error.code, error.details) == (400, "secret_locked", {"principals": ["alice"]}), (
            "the password of an elevated connection can be led to another host"
        )
        assert alice.post("/connection/info", connections=[id])["infos"][0]["rawData"] == before
        other.post("/connection/update", connection=id, name="another name", data=before, validate=False)
        alice.post("/connection/update", connection=id, data=before | ELSEWHERE, validate=False)
        assert refused(alice, "/shell/start", connection=elevated).code == "host_refused"
        other.post("/connection/remove", connections=[gateway])
        assert refused(alice, "/shell/start", connection=elevated).code == "unknown_connection"


def test_a_secret_cannot_be_taken_along_to_another_carrier(daemon: Daemon, alice: Client) -> None:
    with session(daemon) as stranger:
        *_, elevated = chain(alice, "again")
        own = add(stranger, "own", **(HOST | {"user": "own"}))
        stolen = alice.post("/connection/info", connections=[elevated])["infos"][0]["rawData"] | {"host": own}
        for path, fields in (("/connection/update", {"connection": elevated}), ("/connection/add", {"name": "stolen"})):
            assert refused(stranger, path, data=stolen, validate=False, **fields).code == "secret_locked"


def test_changing_a_connection_over_a_locked_secret_needs_that_secret(daemon: Daemon, alice: Client) -> None:
    with session(daemon) as stranger:
        *_, elevated = chain(alice, "rights")
        inner = {"type": "shellEnvironment", "host": elevated, "commands": ["true"]}
        id = add(alice, "inner", **inner)
        hostile = inner | {"commands": ["id >/tmp/whose"]}
        error = refused(stranger, "/connection/update", connection=id, data=hostile, validate=False)
        assert (error.code, error.details) == ("secret_locked", {"principals": ["alice"]}), (
            "a session that may not start a connection chooses what it runs with its users' rights"
        )
        stranger.post("/connection/update", connection=id, name="inner, renamed", data=inner, validate=False)
        alice.post("/connection/update", connection=id, data=hostile, validate=False)
        stranger.post("/connection/remove", connections=[id])
