"""Blocked commands do not delay other requests, and requests beyond the limit get 503."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from connmgr.api.services import STOPS, RequestSlots
from connmgr.client import ClientError
from connmgr.errors import Busy
from tests.api.wire import LOCAL, bearer, client_of, send, token_of
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually

SLOTS = 64


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A missing file; commands wait until it exists."""
    return tmp_path / "gate"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests. Request it before the daemon, whose end then ends them even if the test fails."""
    with ThreadPoolExecutor(SLOTS + 1) as pool:
        yield pool


def blocked(daemon: Daemon, connection: str, gate: Path) -> Any:
    command = f"until [ -e {gate} ]; do sleep 0.1; done; echo opened"
    with client_of(daemon) as client:
        while True:
            try:
                return client.post("/shell/exec", connection=connection, command=command, timeout=90)
            except ClientError as error:
                # The test's own requests for a free slot occupy one briefly.
                if error.code != "busy":
                    raise


def until_full(daemon: Daemon, headers: dict[str, str]) -> Any:
    """Repeat a request until no slot is free, and return the refusal."""
    return eventually(
        lambda: send(daemon.url, "/shell/start", {"connection": LOCAL}, headers),
        "the slots are never full",
        holds=lambda answer: answer.status != 200,
    )


def test_64_blocked_commands_delay_no_handshake_and_the_65th_is_refused_at_once(
    pool: ThreadPoolExecutor, clean_daemon: Daemon, gate: Path
) -> None:
    clean_daemon.client.post("/shell/start", connection=LOCAL)
    headers = bearer(clean_daemon)
    # One command runs, the others queue in the same session; each occupies a slot and a thread.
    running: list[Future[Any]] = [pool.submit(blocked, clean_daemon, LOCAL, gate) for _ in range(SLOTS)]
    refused = until_full(clean_daemon, headers)
    assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "busy", "1")
    for _ in range(20):
        assert token_of(clean_daemon)
    assert send(clean_daemon.url, "/connection/info", {"connections": [LOCAL]}, headers).status == 200
    assert not any(future.done() for future in running)
    gate.touch()
    assert [future.result(60) for future in running] == [{"exitCode": 0, "stdout": "opened", "stderr": ""}] * SLOTS
    assert send(clean_daemon.url, "/shell/start", {"connection": LOCAL}, headers).status == 200


def test_the_number_of_slots_is_a_setting(pool: ThreadPoolExecutor, start_daemon: StartDaemon, gate: Path) -> None:
    daemon = start_daemon("--threads", "1")
    daemon.client.post("/shell/start", connection=LOCAL)
    running = pool.submit(blocked, daemon, LOCAL, gate)
    refused = until_full(daemon, bearer(daemon))
    assert "All 1 slots" in refused.message
    gate.touch()
    assert running.result(60)["stdout"] == "opened"


def test_a_stop_ends_the_command_that_has_the_last_slot(
    pool: ThreadPoolExecutor, start_daemon: StartDaemon, gate: Path
) -> None:
    daemon = start_daemon("--threads", "1")
    daemon.client.post("/shell/start", connection=LOCAL)
    running = pool.submit(blocked, daemon, LOCAL, gate)
    headers = bearer(daemon)
    until_full(daemon, headers)
    assert send(daemon.url, "/shell/stop", {"connection": LOCAL}, headers).status == 200
    with pytest.raises(ClientError) as ended:
        running.result(60)
    assert ended.value.code == "shell_stopped"
    assert send(daemon.url, "/shell/start", {"connection": LOCAL}, headers).status == 200


def test_stops_have_a_few_slots_of_their_own_when_all_are_taken() -> None:
    slots = RequestSlots(2)
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(slots.taken())
        with pytest.raises(Busy):
            held.enter_context(slots.taken())
        for _ in range(STOPS):
            held.enter_context(slots.taken(stops=True))
        with pytest.raises(Busy):
            held.enter_context(slots.taken(stops=True))
    with ExitStack() as held:
        for _ in range(2 + STOPS):
            held.enter_context(slots.taken(stops=True))


def test_two_requests_at_once_on_one_session_get_their_own_answers(pool: ThreadPoolExecutor, daemon: Daemon) -> None:
    daemon.client.post("/shell/start", connection=LOCAL)
    ready = threading.Barrier(16)

    def one(number: int) -> str:
        with client_of(daemon) as client:
            ready.wait(30)
            return str(client.post("/shell/exec", connection=LOCAL, command=f"echo {number}")["stdout"])

    assert list(pool.map(one, range(16))) == [str(number) for number in range(16)]


def test_the_same_connection_added_at_once_is_stored_once(pool: ThreadPoolExecutor, clean_daemon: Daemon) -> None:
    data = {"type": "ssh", "host": "box.example", "user": "root", "password": "hunter2"}
    ready = threading.Barrier(8)

    def one(number: int) -> str:
        with client_of(clean_daemon) as client:
            client.post("/daemon/version")
            ready.wait(30)
            return str(client.post("/connection/add", name=f"box {number}", data=data)["connection"])

    assert len(set(pool.map(one, range(8)))) == 1


def test_a_client_keeps_its_session_over_a_restart_of_the_daemon(port: str, start_daemon: StartDaemon) -> None:
    first = start_daemon("--port", port)
    with client_of(first) as client:
        client.post("/daemon/version")
        first.stop()
        with pytest.raises(ClientError) as caught:
            client.post("/daemon/version")
        assert (caught.value.code, caught.value.status) == ("unreachable", 0)
        start_daemon("--port", port, home=first.home)
        assert client.post("/daemon/version")["pro"] is False
