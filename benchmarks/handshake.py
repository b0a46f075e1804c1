"""Handshakes while a blocked command occupies each of the daemon's threads, beside an idle daemon.

Run it with ``python -m benchmarks.handshake``.
"""

from __future__ import annotations

import json
import os
import shlex
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.daemon import LOCAL_MACHINE, temporary_daemon
from benchmarks.timing import percentile, print_table
from connmgr.client import Client
from tests.daemon import Daemon

BLOCKED = 64
HANDSHAKES = 200
START_SECONDS = 60


def main() -> None:
    """Measure handshakes on an idle daemon, then during 64 running commands."""
    with temporary_daemon("--threads", str(BLOCKED)) as daemon, ThreadPoolExecutor(BLOCKED) as pool:
        gates = [daemon.home / f"gate{number}" for number in range(BLOCKED)]
        connections = [_start_shell(daemon, number) for number in range(BLOCKED)]
        idle = handshakes(daemon)
        commands = [pool.submit(_block, daemon, *pair) for pair in zip(connections, gates, strict=True)]
        _wait_for([gate.with_suffix(".reached") for gate in gates])
        busy = handshakes(daemon)
        for gate in gates:
            os.close(os.open(gate, os.O_WRONLY))
        answered = [command.result()["exitCode"] for command in commands].count(0)
    rows = [_row("idle", idle), _row(f"while {BLOCKED} commands block", busy)]
    heads = ("", "p50 ms", "p99 ms", "worst ms", "handshakes")
    print_table("/handshake, each on a new TCP connection", heads, rows, repeat="python -m benchmarks.handshake")
    print(f"  {answered} of {BLOCKED} blocked commands answered when they were released")


def _start_shell(daemon: Daemon, number: int) -> str:
    # The init command differs, because an equal connection would not be added again.
    data = {"type": "shellEnvironment", "host": LOCAL_MACHINE, "shell": "dash", "commands": [f"NUMBER={number}"]}
    added = daemon.client.post("/connection/add", name=f"blocked {number}", data=data, validate=False)
    daemon.client.post("/shell/start", connection=added["connection"])
    return str(added["connection"])


def _block(daemon: Daemon, connection: str, gate: Path) -> dict[str, object]:
    os.mkfifo(gate)
    command = f": > {shlex.quote(str(gate))}.reached; cat {shlex.quote(str(gate))}"
    client = Client(daemon.url, auth_file=daemon.auth_file)
    answer = client.post("/shell/exec", connection=connection, command=command)
    assert isinstance(answer, dict)
    return answer


def _wait_for(paths: list[Path]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{sum(not path.exists() for path in paths)} commands have not begun")
        time.sleep(0.05)


def handshakes(daemon: Daemon) -> list[float]:
    taken = []
    auth = {"type": "local", "authFileContent": daemon.auth_file.read_text()}
    body = json.dumps({"auth": auth, "client": {"type": "api", "name": "benchmark"}}).encode()
    request = urllib.request.Request(f"{daemon.url}/handshake", body, {"Content-Type": "application/json"})
    for _ in range(HANDSHAKES):
        start = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
        taken.append(time.perf_counter() - start)
    return taken


def _row(title: str, seconds: list[float]) -> tuple[str, ...]:
    figures = (median(seconds), percentile(seconds, 99), max(seconds))
    return title, *(f"{figure * 1e3:.1f}" for figure in figures), str(len(seconds))


if __name__ == "__main__":
    main()
