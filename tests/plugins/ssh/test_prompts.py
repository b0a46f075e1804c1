"""Keyboard-interactive conversations that no installed PAM module has, with a server built on paramiko."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL

from connmgr.errors import AuthFailed, HostRefused
from connmgr_ssh import Ssh
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.sshd import keygen

PASSWORD = "correct horse"

Questions = list[tuple[str, bool]]


class Examiner(paramiko.ServerInterface):
    """Asks rounds of questions, and accepts a client that answers the last one with the password."""

    def __init__(self, rounds: list[Questions], methods: str) -> None:
        self.rounds = list(rounds)
        self.methods = methods
        self.answers: list[list[str]] = []
        self.passwords: list[str] = []
        self.hang_up: Callable[[], object] | None = None
        """Called in place of the answer to a key or a password."""

    def get_allowed_auths(self, username: str) -> str:
        return self.methods

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self.hang_up:
            self.hang_up()
        return AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        self.passwords.append(password)
        if self.hang_up:
            self.hang_up()
        return AUTH_SUCCESSFUL if password == PASSWORD else AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        return self._next()

    def check_auth_interactive_response(self, responses: list[str]) -> Any:
        self.answers.append(responses)
        if self.rounds:
            return self._next()
        given = [answer for answers in self.answers for answer in answers]
        return AUTH_SUCCESSFUL if given == [PASSWORD] else AUTH_FAILED

    def _next(self) -> paramiko.InteractiveQuery:
        return paramiko.InteractiveQuery("Title", "Instructions", *self.rounds.pop(0))


class Server:
    """A paramiko server for one connection."""

    def __init__(self, examiner: Examiner) -> None:
        self.examiner = examiner
        self.key = paramiko.ECDSAKey.generate()
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._transport: paramiko.Transport | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        self._transport = paramiko.Transport(connection)
        self._transport.add_server_key(self.key)
        self._transport.start_server(event=threading.Event(), server=self.examiner)

    def hang_up(self) -> None:
        """End the connection without a word."""
        assert self._transport
        self._transport.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._thread.join(DEADLINE_SECONDS)
        self._listener.close()
        if self._transport:
            self._transport.close()
            self._transport.join(DEADLINE_SECONDS)


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[Server] = []

    def start(rounds: list[Questions], methods: str = "keyboard-interactive") -> Server:
        running.append(Server(Examiner(rounds, methods)))
        return running[-1]

    yield start
    for server in running:
        server.close()


def log_in(ssh: Ssh, server: Server, **credentials: Any) -> None:
    data = ssh.schema().load(
        {
            "host": "127.0.0.1",
            "port": server.port,
            "user": "someone",
            **(credentials or {"password": PASSWORD}),
            "hostKey": f"{server.key.get_name()} {server.key.get_base64()}",
        }
    )
    assert isinstance(data, dict)
    ssh.open(data, None, timeout=DEADLINE_SECONDS).close()


@pytest.mark.parametrize(
    "rounds",
    [
        [[("Password: ", False)]],
        [[("someone's password:", False)]],
        [[("(someone@host) Password: ", False)]],
        [[("Passwort: ", False)]],
        [[("Mot de passe :", False)]],
        [[("Пароль: ", False)]],
        [[], [("Password: ", False)], []],
    ],
    ids=str,
)
def test_a_question_for_the_password_is_answered(ssh: Ssh, serve: Serve, rounds: list[Questions]) -> None:
    server = serve(rounds)
    log_in(ssh, server)
    assert [answers for answers in server.examiner.answers if answers] == [[PASSWORD]]


@pytest.mark.parametrize(
    "questions",
    [
        [("Verification code: ", False)],
        [("Password: ", True)],
        [("User: ", True), ("Password: ", False)],
        [("One-time password (OTP): ", False)],
        [("New password: ", False)],
        [("Touch the key", False)],
    ],
    ids=str,
)
def test_no_other_question_gets_the_password(ssh: Ssh, serve: Serve, questions: Questions) -> None:
    server = serve([questions])
    with pytest.raises(AuthFailed) as caught:
        log_in(ssh, server)
    assert server.examiner.answers == []
    assert f"only a person can answer the host's question {questions[0][0].strip()!r}" in caught.value.message
    assert PASSWORD not in caught.value.message


def test_a_question_after_the_password_is_not_answered_with_it_again(ssh: Ssh, serve: Serve) -> None:
    server = serve([[("Password: ", False)], [("Password: ", False)]])
    with pytest.raises(AuthFailed, match="only a person can answer"):
        log_in(ssh, server)
    assert server.examiner.answers == [[PASSWORD], [""]]


def test_when_the_question_is_another_the_password_method_is_used(ssh: Ssh, serve: Serve) -> None:
    server = serve([[("Verification code: ", False)]], "keyboard-interactive,password")
    log_in(ssh, server)
    assert server.examiner.answers == []
    assert server.examiner.passwords == [PASSWORD]


def test_control_characters_of_a_question_do_not_reach_the_client(ssh: Ssh, serve: Serve) -> None:
    with pytest.raises(AuthFailed) as caught:
        log_in(ssh, serve([[("\x1b[2JCode\r\n", False)]]))
    assert caught.value.message.isprintable()


def test_a_host_that_ends_a_login_without_a_word_has_refused_a_password_but_not_a_key(
    ssh: Ssh, serve: Serve, tmp_path: Path
) -> None:
    key = keygen(tmp_path / "key")
    for credentials, expected in (
        ({"identity": {"file": str(key)}}, HostRefused),
        ({"password": PASSWORD}, AuthFailed),
    ):
        server = serve([], methods="publickey,password")
        server.examiner.hang_up = server.hang_up
        with pytest.raises(expected, match="ended the connection during the login of someone"):
            log_in(ssh, server, **credentials)
