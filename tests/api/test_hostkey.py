"""Who may trust or forget host keys, at the endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import LOCAL_MACHINE
from tests.api.wire import client_of, refused
from tests.daemon import Daemon
from tests.plugins.sshd import keygen

PASSPHRASE = "alice's long passphrase"
HOST = {"type": "ssh", "host": "build.example", "user": "u"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("keys"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("pairs")
    return [" ".join(Path(f"{keygen(directory / name)}.pub").read_text().split()[:2]) for name in ("a", "b")]


def test_a_known_key_is_never_replaced_by_trusting_another(daemon: Daemon, keys: list[str]) -> None:
    with client_of(daemon) as client:
        id = client.connection.add("build", HOST)
        client.hostkey.trust(id, "build.example", keys[0])
        client.hostkey.trust(id, "build.example", keys[0])
        assert refused(client, "/hostkey/trust", connection=id, host="build.example", hostKey=keys[1]).code == (
            "host_key_changed"
        )
        (forgotten,) = client.hostkey.forget(id)
        assert (forgotten.kept, "connmgr" in forgotten.place) == ("", True)
        assert client.hostkey.forget(id) == []
        client.hostkey.trust(id, "build.example", keys[1])


def test_of_a_chain_the_link_that_leads_to_the_host_is_found(daemon: Daemon, keys: list[str]) -> None:
    with client_of(daemon) as client:
        gate = client.connection.add("gate", HOST | {"host": "gate.example", "port": 2222})
        behind = client.connection.add("behind", HOST | {"host": "behind.example", "gateway": gate})
        root = client.connection.add("root", {"type": "shellEnvironment", "host": behind, "elevated": True})
        client.hostkey.trust(root, "[gate.example]:2222", keys[0])
        client.hostkey.trust(root, "behind.example", keys[1])
        assert len(client.hostkey.forget(root)) == 1
        assert len(client.hostkey.forget(root, "[gate.example]:2222")) == 1


@pytest.mark.parametrize("host", ["elsewhere.example", "build.example:22", "*", "[build.example]:22"])
def test_a_host_to_which_nothing_leads_is_refused(daemon: Daemon, keys: list[str], host: str) -> None:
    with client_of(daemon) as client:
        id = client.connection.add("elsewhere", HOST | {"user": "other"})
        for path, more in (("/hostkey/trust", {"hostKey": keys[0]}), ("/hostkey/forget", {})):
            error = refused(client, path, connection=id, host=host, **more)
            assert (error.status, error.code) == (400, "invalid_request")
        assert refused(client, "/hostkey/forget", connection=LOCAL_MACHINE).code == "invalid_request"


@pytest.mark.parametrize(
    "key", ["", "x", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-rsa\nAAAA AAAA", "SHA256:" + "a" * 43]
)
def test_a_malformed_key_is_refused(daemon: Daemon, key: str) -> None:
    with client_of(daemon) as client:
        id = client.connection.add("no key", HOST | {"host": "nokey.example"})
        error = refused(client, "/hostkey/trust", connection=id, host="nokey.example", hostKey=key)
        assert (error.status, error.code) == (400, "invalid_request")
        assert client.hostkey.forget(id) == []


def test_changing_a_host_key_needs_the_secrets_of_its_connections(own_daemon: Daemon, keys: list[str]) -> None:
    with client_of(own_daemon) as alice, client_of(own_daemon) as other:
        alice.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
        alice.vault.unlock("alice", PASSPHRASE)
        id = alice.connection.add("locked", HOST | {"password": "hunter2"})
        for path, more in (("trust", {"host": "build.example", "hostKey": keys[0]}), ("forget", {})):
            error = refused(other, f"/hostkey/{path}", connection=id, **more)
            assert (error.code, error.details) == ("secret_locked", {"principals": ["alice"]})
        alice.hostkey.trust(id, "build.example", keys[0])
