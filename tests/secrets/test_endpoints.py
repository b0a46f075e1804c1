"""``/secret`` and ``/vault`` on a running daemon."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from connmgr.paths import socket_of
from tests.api.wire import Answer, add, address, client_of, refused, send, token_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.rights.wire import Holder, create

PASSPHRASE = "alice's long passphrase"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the users alice and bob."""
    daemon = Daemon(tmp_path_factory.mktemp("locked"))
    with client_of(daemon) as client:
        client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
        client.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
        client.post("/vault/user/add", user="bob", passphrase="bob's long passphrase")
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("value", ["hunter2", "", "ünï©ødé \U0001f511", "line\nline\r\n", "nul \0 nul", "x" * 100_000])
def test_encryption_is_reversed_by_decryption(daemon: Daemon, value: str) -> None:
    encrypted = daemon.client.post("/secret/encrypt", value=value)["encrypted"]
    assert set(encrypted) == {"encryptedToken", "secret"}
    assert set(encrypted["encryptedToken"]) == {"token"}
    assert set(encrypted["secret"]) == {"encryptedValue", "type"}
    assert encrypted["secret"]["type"] == "locked"
    with client_of(daemon) as other:
        assert other.post("/secret/decrypt", encrypted=encrypted) == {"decrypted": value}


def test_a_changed_secret_is_an_integrity_error(daemon: Daemon) -> None:
    encrypted = daemon.client.post("/secret/encrypt", value="hunter2")["encrypted"]
    for part, name in (("secret", "encryptedValue"), ("encryptedToken", "token")):
        text = encrypted[part][name]
        for at in (0, len(text) // 2, len(text) - 5):
            changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
            forged = {**encrypted, part: {**encrypted[part], name: changed}}
            error = refused(daemon.client, "/secret/decrypt", encrypted=forged)
            assert (error.status, error.code) == (500, "integrity")


@pytest.mark.parametrize(
    "encrypted",
    [
        None,
        "text",
        {},
        {"secret": {"encryptedValue": "AA==", "type": "locked"}},
        {"encryptedToken": {"token": "AA=="}, "secret": {"encryptedValue": "AA==", "type": "open"}},
        {"encryptedToken": {"token": 7}, "secret": {"encryptedValue": "AA==", "type": "locked"}},
        {"encryptedToken": {"token": "AA==", "more": 1}, "secret": {"encryptedValue": "AA==", "type": "locked"}},
    ],
)
def test_another_shape_is_an_invalid_request(daemon: Daemon, encrypted: Any) -> None:
    error = refused(daemon.client, "/secret/decrypt", encrypted=encrypted)
    assert (error.status, error.code) == (400, "invalid_request")
    assert "encrypted" in error.message


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "value"),
        ({"value": 7}, "value"),
        ({"value": "v", "principals": []}, "principals"),
        ({"value": "v", "principals": "vault"}, "principals"),
        ({"value": "v", "principals": ["vault"] * 65}, "principals"),
        ({"value": "v", "principal": ["vault"]}, "principal"),
    ],
)
def test_a_bad_field_is_named_and_no_value_is_repeated(daemon: Daemon, fields: dict[str, Any], place: str) -> None:
    error = refused(daemon.client, "/secret/encrypt", **fields)
    assert (error.status, error.code) == (400, "invalid_request")
    assert place in error.message


def test_a_vault_without_users_says_so(daemon: Daemon) -> None:
    status = daemon.client.post("/vault/status")
    assert status == {"hasUsers": False, "user": None, "principals": ["vault"], "users": []}


def test_a_secret_sealed_for_a_user_needs_that_user(locked: Daemon) -> None:
    with client_of(locked) as alice, client_of(locked) as stranger:
        alice.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
        assert alice.post("/vault/status") == {
            "hasUsers": True,
            "user": "alice",
            "principals": ["alice", "vault"],
            "users": ["alice", "bob"],
        }
        assert stranger.post("/vault/status") == {"hasUsers": True, "user": None, "principals": [], "users": []}
        encrypted = alice.post("/secret/encrypt", value="hunter2")["encrypted"]
        error = refused(stranger, "/secret/decrypt", encrypted=encrypted)
        assert (error.status, error.code, error.details) == (400, "secret_locked", {"principals": ["alice"]})
        assert alice.post("/secret/decrypt", encrypted=encrypted) == {"decrypted": "hunter2"}
        assert alice.post("/vault/lock") == {}
        assert refused(alice, "/secret/decrypt", encrypted=encrypted).code == "secret_locked"


def test_a_stranger_may_not_manage_users(locked: Daemon) -> None:
    with client_of(locked) as stranger:
        for path, fields in (
            ("/vault/user/add", {"user": "carol", "passphrase": "a long passphrase"}),
            ("/vault/user/remove", {"user": "bob"}),
        ):
            assert refused(stranger, path, **fields).code == "vault_locked"
        assert refused(stranger, "/secret/encrypt", value="v", principals=["mallory"]).code == "unknown_principal"


def test_guessing_is_slowed_down_with_a_time_to_come_back(locked: Daemon) -> None:
    with client_of(locked) as client:
        answers = [refused(client, "/vault/unlock", user="alice", passphrase="a guess") for _ in range(5)]
    assert [answer.code for answer in answers[:4]] == ["unlock_failed"] * 4
    assert (answers[4].status, answers[4].code) == (503, "unlock_throttled")


def test_wrong_passphrases_of_tokens_keep_nobody_from_unlocking(locked: Daemon) -> None:
    tokens = [create(locked) for _ in range(3)]
    over = threading.Event()
    guesses = []

    def guess(token: Holder) -> None:
        while not over.is_set():
            wrong = {"user": "alice", "passphrase": "a guess", "newPassphrase": "a new passphrase"}
            guesses.append(token.refused("/vault/user/passphrase", **wrong))

    with ThreadPoolExecutor(6) as guessing, client_of(locked) as client:
        running = [guessing.submit(guess, token) for token in tokens * 2]
        try:
            eventually(
                lambda: guesses.count("unlock_throttled"),
                "wrong passphrases are not slowed down",
                holds=lambda seen: seen > 10,
            )
            for _ in range(5):
                client.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
                client.post("/vault/lock")
        finally:
            over.set()
    for one in running:
        one.result()


class Beside(HTTPConnection):
    """A connection to a daemon's Unix socket."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(urlsplit(daemon.url).netloc, timeout=DEADLINE_SECONDS)
        self._path = socket_of(daemon.auth_file, address(daemon.url)[1])

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@pytest.mark.parametrize("door", ["port", "socket"])
def test_wrong_passphrases_of_the_owner_s_other_sessions_keep_nobody_from_unlocking(
    own_daemon: Daemon, door: str
) -> None:
    def unlock(token: str, passphrase: str) -> str:
        body = {"user": "alice", "passphrase": passphrase}
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        if door == "port":
            answer = send(own_daemon.url, "/vault/unlock", body, headers)
        else:
            with closing(Beside(own_daemon)) as beside:
                beside.request("POST", "/vault/unlock", json.dumps(body), headers)
                response = beside.getresponse()
                answer = Answer(response.status, {}, response.read())
        return "ok" if answer.status == 200 else answer.code

    own_daemon.client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
    alice, guesser = token_of(own_daemon), token_of(own_daemon)
    guesses = [unlock(guesser, "a guess") for _ in range(30)]
    assert guesses[-1] == "unlock_throttled"
    assert [unlock(alice, PASSPHRASE) for _ in range(75)] == ["ok"] * 75
    # However long that took, the guesser has to wait again at the latest after one more guess.
    assert "unlock_throttled" in [unlock(guesser, "a guess") for _ in range(2)]


def test_a_stored_connection_is_opened_by_its_principals_alone(locked: Daemon) -> None:
    data = {"type": "ssh", "host": "127.0.0.1", "port": 9, "user": "u", "password": "hunter2"}
    with client_of(locked) as alice, client_of(locked) as stranger:
        alice.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
        added = add(alice, "alice's", **data)
        assert add(alice, "again", **data) == added
        info = stranger.post("/connection/info", connections=[added])["infos"][0]
        assert set(info["rawData"]["password"]) == {"encryptedToken", "secret"}
        error = refused(stranger, "/shell/start", connection=added)
        assert (error.code, error.details.get("principals")) == ("secret_locked", ["alice"])
        assert refused(alice, "/shell/start", connection=added).code == "host_refused"
        alice.post("/connection/remove", connections=[added])


def test_users_and_secrets_survive_a_restart(tmp_path: Path) -> None:
    first = Daemon(tmp_path)
    with client_of(first) as client:
        client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
        encrypted = client.post("/secret/encrypt", value="hunter2", principals=["alice"])["encrypted"]
    first.kill()
    second = Daemon(tmp_path)
    with client_of(second) as client:
        assert refused(client, "/secret/decrypt", encrypted=encrypted).code == "secret_locked"
        client.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
        assert client.post("/secret/decrypt", encrypted=encrypted) == {"decrypted": "hunter2"}
        assert client.post("/vault/user/remove", user="alice")["connections"] == []
        assert client.post("/vault/status")["hasUsers"] is False
    second.stop()
