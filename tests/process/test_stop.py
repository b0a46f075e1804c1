"""Stopping: running requests are answered, new ones refused, and the process ends in bounded time."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import ClientError
from tests.api.wire import LOCAL, address, bearer, client_of, send
from tests.daemon import PROGRAM, Daemon
from tests.deadlines import eventually, eventually_equal

STOP_SECONDS = 25.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests. Request it before the daemon, whose end then ends them even if the test fails."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def execute(daemon: Daemon, command: str) -> Any:
    with client_of(daemon) as client:
        return client.post("/shell/exec", connection=LOCAL, command=command)


def ended(daemon: Daemon) -> None:
    """Wait for the daemon's end, which must be clean and within ``STOP_SECONDS``."""
    began = time.monotonic()
    daemon.process.wait(STOP_SECONDS + 5)
    took = time.monotonic() - began
    assert (daemon.process.returncode, took < STOP_SECONDS) == (0, True)
    assert "Traceback" not in daemon.stderr()
    assert not daemon.auth_file.exists()
    daemon.stop()


class TestProcess:
    """A daemon started as a user does, whose interpreter ends cleanly, too."""

    @pytest.fixture
    def daemon_program(self) -> tuple[str, ...]:
        return PROGRAM

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_stops_it(self, own_daemon: Daemon, number: signal.Signals) -> None:
        own_daemon.process.send_signal(number)
        ended(own_daemon)


def test_a_client_stops_it(own_daemon: Daemon) -> None:
    headers = bearer(own_daemon)
    answer = send(own_daemon.url, "/daemon/stop", {}, headers)
    assert (answer.status, answer.body) == (200, b"")
    ended(own_daemon)


def test_a_second_signal_changes_nothing(own_daemon: Daemon) -> None:
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        own_daemon.process.send_signal(number)
    ended(own_daemon)


def test_a_command_that_is_about_to_end_is_answered_and_new_requests_are_503(
    pool: ThreadPoolExecutor, own_daemon: Daemon, tmp_path: Path
) -> None:
    own_daemon.client.post("/shell/start", connection=LOCAL)
    headers = bearer(own_daemon)
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    command = f"touch {begun}; until [ -e {gate} ]; do sleep 0.05; done; echo done"
    running = pool.submit(execute, own_daemon, command)
    eventually(begun.exists, "the command does not begin")
    own_daemon.process.send_signal(signal.SIGTERM)
    answer = eventually(
        lambda: send(own_daemon.url, "/daemon/version", {}, headers),
        "the daemon answers as before",
        holds=lambda answer: answer.status != 200,
    )
    assert (answer.status, answer.code) == (503, "stopping")
    assert "Retry-After" in answer.headers
    gate.touch()
    assert running.result(20) == {"exitCode": 0, "stdout": "done", "stderr": ""}
    ended(own_daemon)


def test_endless_commands_are_cancelled_and_answered(pool: ThreadPoolExecutor, own_daemon: Daemon) -> None:
    own_daemon.client.post("/shell/start", connection=LOCAL)
    # The second waits for its turn behind the first, which ignores SIGTERM.
    commands = ("trap '' TERM INT HUP; sleep 1000 & wait; sleep 1000", "sleep 1000")
    running = [pool.submit(execute, own_daemon, command) for command in commands]
    eventually_equal(lambda: own_daemon.client.daemon.status().slots.in_use, 2, "the commands do not run")
    own_daemon.process.send_signal(signal.SIGTERM)
    ended(own_daemon)
    for future in running:
        with pytest.raises(ClientError) as caught:
            future.result(30)
        assert caught.value.status in {500, 503}


@pytest.mark.slow
def test_a_client_that_never_reads_does_not_delay_the_stop(own_daemon: Daemon) -> None:
    own_daemon.client.post("/shell/start", connection=LOCAL)
    body = json.dumps({"connection": LOCAL, "command": "head -c 16000000 /dev/zero | tr '\\0' x"}).encode()
    lines = [f"{name}: {value}" for name, value in bearer(own_daemon).items()]
    head = ["POST /shell/exec HTTP/1.1", f"Host: {own_daemon.url[7:]}", "Content-Type: application/json", *lines]
    with socket.create_connection(address(own_daemon.url)) as connection:
        connection.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        assert connection.recv(10).startswith(b"HTTP/1.1 2")
        own_daemon.process.send_signal(signal.SIGTERM)
        ended(own_daemon)


def test_after_kill_9_it_starts_again(own_daemon: Daemon) -> None:
    id = own_daemon.client.post("/category/add", name="kept", parent="bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c")["category"]
    old = own_daemon.auth_file.read_text()
    own_daemon.kill()
    assert own_daemon.auth_file.exists()
    again = Daemon(own_daemon.home)
    try:
        assert again.auth_file.read_text() != old
        assert again.client.post("/category/query", filter="kept")["found"] == [id]
    finally:
        again.stop()


def test_a_client_leaves_no_thread(own_daemon: Daemon) -> None:
    before = set(threading.enumerate())
    with client_of(own_daemon) as client:
        client.post("/daemon/version")
    assert set(threading.enumerate()) <= before
