"""A bare request to the daemon beside a minimal Flask application under waitress with the same answer.

Run it with ``python -m benchmarks.http``. CPU is the server process's user and system time. The two take turns of a
few milliseconds, and each ratio is the median over all turns, so that other load affects both.
"""

from __future__ import annotations

import http.client
import json
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from benchmarks.daemon import temporary_daemon
from benchmarks.timing import print_table

REPEAT = "python -m benchmarks.http"
ROUNDS = 300
CALLS = 20
FLOOR = "least Flask application"
BARE = "bare request"

LEAST = """
import flask, sys
from waitress import create_server

app = flask.Flask("least")

@app.post("/daemon/version")
def version():
    flask.request.get_json()
    return json

json = flask.json.loads(sys.argv[1])
server = create_server(app, host="127.0.0.1", port=0)
print(server.effective_port, flush=True)
server.run()
"""


class Server(NamedTuple):
    """A server's process, and a request to it."""

    pid: int
    call: Callable[[], object]

    def cpu(self) -> float:
        """Return the process's CPU seconds."""
        # The result of clock_getcpuclockid(3), which Python lacks: CPUCLOCK_SCHED of the process.
        return time.clock_gettime(~self.pid << 3 | 2)


class Turn(NamedTuple):
    """Seconds of one call in one turn of a server."""

    wall: float
    cpu: float


def main() -> None:
    """Measure wall time and the server's CPU time of one request on a connection that is kept alive."""
    with temporary_daemon() as daemon:
        answer = daemon.client.post("/daemon/version")
        address = daemon.url.removeprefix("http://")
        token = _token(address, daemon.auth_file.read_text())
        with _least(json.dumps(answer)) as (floor, port):
            servers = {
                FLOOR: Server(floor, _request(f"127.0.0.1:{port}", None)),
                BARE: Server(daemon.pid, _request(address, token)),
            }
            taken = turns(servers, ROUNDS)
    rows = [
        (
            name,
            *(f"{median(turn.wall for turn in of_server) * 1e3:.3f}", f"{ratio(taken, name, FLOOR, 'wall'):.2f}"),
            *(f"{median(turn.cpu for turn in of_server) * 1e3:.3f}", f"{ratio(taken, name, FLOOR, 'cpu'):.2f}"),
        )
        for name, of_server in taken.items()
    ]
    heads = ("", "median ms", f"x {FLOOR}", "CPU ms", f"x {FLOOR}")
    print_table("A request that does nothing, keep-alive", heads, rows, repeat=REPEAT)


def ratio(taken: Mapping[str, list[Turn]], name: str, base: str, what: str) -> float:
    """Return the ratio of ``name`` to ``base`` in ``what``, ``wall`` or ``cpu``: the median over all turns."""
    pairs = zip(taken[name], taken[base], strict=True)
    return median(getattr(one, what) / getattr(other, what) for one, other in pairs)


def turns(servers: Mapping[str, Server], rounds: int) -> dict[str, list[Turn]]:
    """Send :data:`CALLS` requests to each server in turn, ``rounds`` times, and return their turns."""
    walls: dict[str, list[float]] = {name: [] for name in servers}
    # CPU up to the beginning of the next turn, since some work follows the answer.
    clocks: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(rounds + 1):
        for name, server in servers.items():
            clocks[name].append(server.cpu())
            walls[name].append(median(_seconds(server.call) for _ in range(CALLS)))
    taken = {}
    for name, marks in clocks.items():
        cpu = [(after - before) / CALLS for before, after in pairwise(marks)]
        taken[name] = [Turn(*both) for both in zip(walls[name], cpu, strict=False)]
    return taken


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _request(address: str, token: str | None) -> Callable[[], object]:
    connection = http.client.HTTPConnection(address, timeout=30)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}

    def call() -> None:
        connection.request("POST", "/daemon/version", b"{}", headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()

    return call


def _token(address: str, credential: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=30)
    auth = {"auth": {"type": "local", "authFileContent": credential}, "client": {"type": "api", "name": "benchmark"}}
    connection.request("POST", "/handshake", json.dumps(auth), {"Content-Type": "application/json"})
    token = json.loads(connection.getresponse().read())["sessionToken"]
    connection.close()
    return str(token)


@contextmanager
def _least(answer: str) -> Iterator[tuple[int, int]]:
    process = subprocess.Popen([sys.executable, "-c", LEAST, answer], stdout=subprocess.PIPE)
    assert process.stdout
    try:
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            assert ready.select(30), "the least application does not start"
        yield process.pid, int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


if __name__ == "__main__":
    main()
