"""``/job`` with unreachable machines, unauthorised callers, lost clients, removed connections and a stopping daemon."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.client import Client, ClientError
from tests.api.test_job import POLL_SECONDS, start
from tests.api.wire import LOCAL, add, address, bearer, client_of, refused
from tests.daemon import Daemon
from tests.deadlines import eventually, eventually_equal
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.relay import Relay

CLIENTS = 200
ANSWER_SECONDS = 20.0
"""Time for an early answer, which is less than :data:`POLL_SECONDS`."""


@pytest.fixture
def client(own_daemon: Daemon) -> Iterator[Client]:
    with client_of(own_daemon) as client:
        client.post("/shell/start", connection=LOCAL)
        yield client


def waits(daemon: Daemon, job: str, token: str) -> socket.socket:
    """Send a request that waits for a job, and return the socket."""
    one = socket.create_connection(address(daemon.url), timeout=POLL_SECONDS)
    body = json.dumps({"job": job, "wait": POLL_SECONDS}).encode()
    head = f"POST /job/wait HTTP/1.1\r\nHost: localhost:{address(daemon.url)[1]}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    one.sendall(head.encode() + body)
    return one


def connected(daemon: Daemon) -> int:
    return sum(one.status == psutil.CONN_ESTABLISHED for one in psutil.Process(daemon.pid).net_connections())


def test_the_stop_is_told_at_once_to_all_who_wait(own_daemon: Daemon, client: Client) -> None:
    # The job ends by itself, because the daemon stops before.
    job = start(client, "sleep 60")
    token = bearer(own_daemon)["Authorization"]
    with ExitStack() as stack:
        waiting = [stack.enter_context(closing(waits(own_daemon, job, token))) for _ in range(CLIENTS)]
        eventually_equal(lambda: client.daemon.status().slots.in_use, 0, "who waits holds a slot")
        begun = time.monotonic()
        own_daemon.process.terminate()
        for one in waiting:
            answer = one.recv(65536)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"stopping"' in answer
        own_daemon.process.wait(ANSWER_SECONDS)
        assert time.monotonic() - begun < ANSWER_SECONDS


@pytest.mark.needs("descriptors")
def test_clients_that_leave_while_they_wait_leave_nothing_behind(own_daemon: Daemon, client: Client) -> None:
    job = start(client, "read x; exit 3", stdin="open")
    token = bearer(own_daemon)["Authorization"]
    for _ in range(2):
        waiting = [waits(own_daemon, job, token) for _ in range(CLIENTS)]
        eventually(lambda: connected(own_daemon), "not all clients are taken", holds=lambda seen: seen >= CLIENTS)
        for one in waiting:
            one.close()
        eventually(lambda: connected(own_daemon), "who has left is kept", holds=lambda seen: seen < 10)
    client.post("/job/input", job=job, data="x\n")
    assert client.post("/job/wait", job=job, wait=POLL_SECONDS)["exitCode"] == 3


def test_a_caller_who_may_not_open_a_secret_on_the_way(own_daemon: Daemon, client: Client) -> None:
    for user in ("alice", "bob"):
        client.post("/vault/user/add", user=user, passphrase=f"{user}'s long passphrase")
        client.post("/vault/unlock", user="alice", passphrase="alice's long passphrase")
    data = {"type": "shellEnvironment", "host": LOCAL, "elevated": False, "password": "unused"}
    connection = add(client, "alice's", **data)
    client.post("/shell/start", connection=connection)
    job = client.post("/job/start", connection=connection, command="echo x; read y", stdin="open")["job"]
    with client_of(own_daemon) as other:
        other.post("/vault/unlock", user="bob", passphrase="bob's long passphrase")
        for path, fields in {
            "/job/output": {"wait": 1},
            "/job/wait": {"wait": 1},
            "/job/info": {},
            "/job/input": {"data": "x"},
            "/job/kill": {},
            "/job/remove": {"force": True},
        }.items():
            assert refused(other, path, job=job, **fields).code == "secret_locked", path
    assert client.post("/job/output", job=job, wait=POLL_SECONDS)["stdout"]["data"] == "x\n"
    client.post("/job/remove", job=job, force=True)


def far(client: Client, tmp_path: Path, stack: ExitStack) -> tuple[Any, Relay, str, dict[str, Any]]:
    (tmp_path / "far").mkdir()
    server = stack.enter_context(ssh_server(tmp_path / "far"))
    relay = stack.enter_context(closing(Relay(server.port)))
    data = {"type": "ssh", **ssh_fields(server, server.user, port=relay.port, connectTimeout=3, keepAlive=1)}
    connection = add(client, "far", **data)
    client.post("/shell/start", connection=connection)
    return server, relay, connection, data


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_of_a_machine_that_cannot_be_reached_is_told_what_was_seen_last(client: Client, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, relay, connection, _ = far(client, tmp_path, stack)
        job = client.post("/job/start", connection=connection, command="echo x; read y; exit 3", stdin="open")["job"]
        assert client.post("/job/output", job=job, wait=POLL_SECONDS)["stdout"]["data"] == "x\n"
        server.crash()
        relay.reset()
        # A recent view of the job is answered without asking the machine.
        eventually(lambda: client.post("/job/info", job=job)["stale"], "the machine is not missed")
        for offset, data in ((0, "x\n"), (2, ""), (5000, "")):
            answer = client.post("/job/output", job=job, stdout=offset, wait=0.5)
            told = answer["state"], answer["stale"], answer["stdout"]["data"], answer["stdout"]["eof"]
            assert told == ("running", True, data, False)
        for path in ("/job/wait", "/job/info"):
            answer = client.post(path, job=job, **({"wait": 0.5} if path == "/job/wait" else {}))
            assert (answer["state"], answer["stale"], answer["exitCode"]) == ("running", True, None)
        (listed,) = client.post("/job/query", states=["running"])["jobs"]
        assert (listed["job"], listed["stale"]) == (job, True)
        assert refused(client, "/job/kill", job=job).code == "host_refused"
        with ThreadPoolExecutor(1) as pool, client.clone() as other:
            waiting = pool.submit(other.post, "/job/output", job=job, stdout=2, wait=POLL_SECONDS, until="exit")
            server.start()
            client.post("/job/input", job=job, data="y\n")
            answer = waiting.result(POLL_SECONDS + 5)
        assert (answer["state"], answer["exitCode"], answer["stale"]) == ("exited", 3, False)


@pytest.mark.needs("sshd")
def test_a_job_whose_connection_is_changed_or_removed_meanwhile(client: Client, tmp_path: Path) -> None:
    with ExitStack() as stack:
        _, _, connection, data = far(client, tmp_path, stack)
        job = client.post("/job/start", connection=connection, command="read y; sleep 60", stdin="open")["job"]
        client.post("/connection/update", connection=connection, data={**data, "connectTimeout": 4}, validate=False)
        assert client.post("/job/info", job=job)["state"] == "running"
        with ThreadPoolExecutor(1) as pool, client.clone() as other:
            waiting = pool.submit(other.post, "/job/wait", job=job, wait=POLL_SECONDS)
            client.post("/job/kill", job=job, signal="KILL")
            assert waiting.result(POLL_SECONDS)["state"] == "killed"
            client.post("/shell/start", connection=connection)
            gate = tmp_path / "far" / "gate"
            os.mkfifo(gate)
            job = client.post("/job/start", connection=connection, command=f"read x <{gate}")["job"]
            begun = time.monotonic()
            waiting = pool.submit(other.post, "/job/wait", job=job, wait=POLL_SECONDS)
            client.post("/connection/remove", connections=[connection])
            assert refusal(waiting.result) in ("unknown_job", "unknown_connection")
            assert time.monotonic() - begun < ANSWER_SECONDS, "who waits is not told that the connection was removed"
            gate.write_bytes(b"end\n")


def refusal(call: Callable[[float], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call(POLL_SECONDS)
    return caught.value.code
