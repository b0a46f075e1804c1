"""Jobs: start beside an exec, poll without news beside a bare request, 480 waiting clients, 200 simultaneous jobs.

Run it with ``python -m benchmarks.jobs``. The server is a temporary sshd on loopback.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from statistics import median

import psutil

from benchmarks.daemon import local_connection, temporary_daemon
from benchmarks.handshake import handshakes
from benchmarks.ssh import add, server
from benchmarks.timing import interleaved, percentile, print_table, print_timings
from tests.api.wire import token_of
from tests.daemon import Daemon

REPEAT = "python -m benchmarks.jobs"
CLIENTS = 480
"""Waiting clients: the daemon accepts 512, and the measurement needs some."""

JOBS = 200
READY_SECONDS = 60


def main() -> None:
    """Measure starts, polls, waiting clients, and many jobs on one link."""
    with server() as sshd, temporary_daemon("--max-connection-jobs", "100000", "--max-jobs", "100000") as daemon:
        over_ssh = add(daemon, sshd)
        daemon.client.post("/shell/start", connection=over_ssh)
        _starts(daemon, {"local bash": local_connection(daemon, "bash"), "ssh": over_ssh})
        _polls(daemon, over_ssh)
        _waits(daemon, over_ssh)
        _at_once(daemon, over_ssh)


def _starts(daemon: Daemon, connections: dict[str, str]) -> None:
    for place, connection in connections.items():
        fields = {"connection": connection, "command": "true"}
        taken = interleaved(
            {
                "/shell/exec true": _post(daemon, "/shell/exec", **fields),
                "/job/start true": _post(daemon, "/job/start", **fields, keep=3600),
            },
            calls=20,
        )
        print_timings(f"Starting a job, {place}", taken, base="/shell/exec true", repeat=REPEAT)


def _polls(daemon: Daemon, connection: str) -> None:
    job = _start(daemon, connection, "echo begun; sleep 600")
    daemon.client.post("/job/output", job=job, wait=25)
    taken = interleaved(
        {
            "bare request": _post(daemon, "/daemon/version"),
            "/job/output without news": _post(daemon, "/job/output", job=job, stdout=6),
        },
        calls=200,
    )
    print_timings("A poll of a job that prints nothing, ssh", taken, base="bare request", repeat=REPEAT)
    daemon.client.post("/job/remove", job=job, force=True)


def _waits(daemon: Daemon, connection: str) -> None:
    job = _start(daemon, connection, "read x", stdin="open")
    process = psutil.Process(daemon.pid)
    idle = handshakes(daemon)
    token, before = token_of(daemon), process.memory_info().rss
    waiting = [_wait(daemon, token, job) for _ in range(CLIENTS)]
    taken = handshakes(daemon)
    grown = (process.memory_info().rss - before) / CLIENTS
    daemon.client.post("/job/input", job=job, data="x\n")
    begun = time.perf_counter()
    answered = sum(one.recv(65536).startswith(b"HTTP/1.1 200") for one in waiting)
    seconds = time.perf_counter() - begun
    for one in waiting:
        one.close()
    rows = [
        (name, f"{median(times) * 1e3:.2f}", f"{percentile(times, 99) * 1e3:.2f}")
        for name, times in (("idle", idle), (f"while {CLIENTS} clients wait for a job", taken))
    ]
    print_table("/handshake, each on a new TCP connection", ("", "p50 ms", "p99 ms"), rows, repeat=REPEAT)
    print(f"  {grown / 1024:.0f} KiB a client; {answered} of {CLIENTS} answered {seconds:.2f} s after the job's end")


def _at_once(daemon: Daemon, connection: str) -> None:
    begun = time.perf_counter()
    jobs = [_start(daemon, connection, f"read x; echo {number}", stdin="open") for number in range(JOBS)]
    started = time.perf_counter()
    for job in jobs:
        daemon.client.post("/job/input", job=job, data="x\n", eof=True)
    for number, job in enumerate(jobs):
        answer = daemon.client.post("/job/output", job=job, wait=25, until="exit")
        assert answer["stdout"]["data"] == f"{number}\n", answer
    ended = time.perf_counter()
    rows = [
        (f"{JOBS} jobs started", f"{started - begun:.2f}"),
        ("fed and read to their ends", f"{ended - started:.2f}"),
    ]
    print_table("Jobs at once on one host over one link", ("", "s"), rows, repeat=REPEAT)


def _start(daemon: Daemon, connection: str, command: str, **options: str) -> str:
    return str(daemon.client.post("/job/start", connection=connection, command=command, **options)["job"])


def _post(daemon: Daemon, path: str, **fields: object) -> Callable[[], object]:
    return lambda: daemon.client.post(path, **fields)


def _wait(daemon: Daemon, token: str, job: str) -> socket.socket:
    host, _, port = daemon.url.removeprefix("http://").partition(":")
    one = socket.create_connection((host, int(port)), timeout=READY_SECONDS)
    body = json.dumps({"job": job, "wait": 25}).encode()
    head = (
        f"POST /job/wait HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    one.sendall(head.encode() + body)
    return one


if __name__ == "__main__":
    main()
