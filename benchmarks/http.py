"""A bare request to the daemon beside the least Flask application under waitress, which answers the same body.

Run it with ``python -m benchmarks.http``. CPU is that of the server's process alone.
"""

from __future__ import annotations

import http.client
import json
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import psutil

from benchmarks.daemon import temporary_daemon
from benchmarks.timing import interleaved, print_table

REPEAT = "python -m benchmarks.http"
CALLS = 1000
FLOOR = "least Flask application"

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


def main() -> None:
    """Measure wall time and the server's CPU time of one request on a connection that is kept alive."""
    with temporary_daemon() as daemon:
        answer = daemon.client.post("/daemon/version")
        address = daemon.url.removeprefix("http://")
        token = _token(address, daemon.auth_file.read_text())
        with _least(json.dumps(answer)) as (floor, port):
            servers = {
                FLOOR: (psutil.Process(floor), _request(f"127.0.0.1:{port}", None)),
                "bare request": (psutil.Process(daemon.pid), _request(address, token)),
            }
            taken = interleaved({name: call for name, (_, call) in servers.items()}, calls=200)
            cpu = {name: _cpu(process, call) for name, (process, call) in servers.items()}
    rows = [
        (
            name,
            f"{median(taken[name]) * 1e3:.3f}",
            f"{median(taken[name]) / median(taken[FLOOR]):.2f}",
            f"{cpu[name] * 1e3:.3f}",
            f"{cpu[name] / cpu[FLOOR]:.2f}",
        )
        for name in servers
    ]
    heads = ("", "median ms", f"x {FLOOR}", "CPU ms", f"x {FLOOR}")
    print_table("A request that does nothing, keep-alive", heads, rows, repeat=REPEAT)


def _cpu(process: psutil.Process, call: Callable[[], object]) -> float:
    """Return the seconds of CPU that ``process`` needs for one ``call``: the median of several rounds."""
    rounds = []
    for _ in range(5):
        before = sum(process.cpu_times()[:2])
        for _ in range(CALLS):
            call()
        rounds.append((sum(process.cpu_times()[:2]) - before) / CALLS)
    return median(rounds)


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
