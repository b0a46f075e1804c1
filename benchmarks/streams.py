"""Live output: the delay of a line, and the cost of a slow reader for the daemon.

Run it with ``python -m benchmarks.streams [MEGABYTES]``, the amount sent to the slow reader. The server is a temporary
sshd on loopback, so that both ends have one clock.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median

import psutil

from benchmarks.daemon import local_connection, temporary_daemon
from benchmarks.output import MEGABYTE, PeakMemory
from benchmarks.ssh import add, master, server
from benchmarks.timing import percentile, print_table
from connmgr.client import Client
from tests.daemon import Daemon
from tests.plugins.sshd import Sshd

REPEAT = "python -m benchmarks.streams"
INTERVALS_MS = (30, 5)
"""Time between two lines; output within 20 ms is joined, which delays it."""

LINES = 100
ROUNDS = 3

DEFAULT_MEGABYTES = 500
PAUSE_SECONDS = 0.05
PAUSE_BYTES = 8 * MEGABYTE
"""The slow reader pauses for :data:`PAUSE_SECONDS` after each so many bytes."""

LinesOf = Callable[[str], Iterator[bytes]]


def main(megabytes: int = DEFAULT_MEGABYTES) -> None:
    """Measure latency over SSH, and memory over SSH and locally."""
    with server() as sshd, temporary_daemon() as daemon:
        connection = add(daemon, sshd)
        daemon.client.shell.start(connection)
        _latency(daemon, sshd, connection)
        rows = [_flow(name, daemon, id, megabytes) for name, id in _ways(daemon, connection).items()]
    heads = ("", "MB", "seconds", "MB/s", "daemon grew MiB", "after MiB")
    title = f"A reader that pauses for {PAUSE_SECONDS * 1e3:.0f} ms after each {PAUSE_BYTES / MEGABYTE:.0f} MB"
    print_table(title, heads, rows, repeat=f"{REPEAT} {megabytes}")


def _ways(daemon: Daemon, connection: str) -> Mapping[str, str]:
    return {"ssh": connection, "local bash": local_connection(daemon, "bash")}


def _latency(daemon: Daemon, sshd: Sshd, connection: str) -> None:
    with master(sshd) as argv:
        ways: dict[str, LinesOf] = {
            "client.shell.stream": lambda command: _streamed(daemon.client, connection, command),
            "ssh -S": lambda command: _printed([*argv, command]),
        }
        rows = []
        for interval in INTERVALS_MS:
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, lines_of in ways.items():
                    taken[name] += _delays(lines_of, interval)
            rows += [(f"{name}, a line every {interval} ms", *_shown(seconds)) for name, seconds in taken.items()]
    print_table("From printf to the reader, over ssh", ("", "p50 ms", "p99 ms", "lines"), rows, repeat=REPEAT)


def _delays(lines_of: LinesOf, interval: int) -> Iterator[float]:
    loop = f"for i in {{1..{LINES}}}; do printf '%s\\n' $EPOCHREALTIME; sleep {interval / 1e3}; done"
    for line in lines_of(shlex.join(["bash", "-c", loop])):
        yield time.time() - float(line)


def _streamed(client: Client, connection: str, command: str) -> Iterator[bytes]:
    with client.shell.stream(connection, command) as stream:
        for piece in stream:
            yield from piece.stdout.splitlines()


def _printed(argv: list[str]) -> Iterator[bytes]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout
        while data := process.stdout.read(1 << 16):
            yield from data.splitlines()


def _shown(seconds: list[float]) -> tuple[str, str, str]:
    return f"{median(seconds) * 1e3:.2f}", f"{percentile(seconds, 99) * 1e3:.2f}", str(len(seconds))


def _flow(name: str, daemon: Daemon, connection: str, megabytes: int) -> tuple[str, ...]:
    """Stream zeros to a reader that pauses."""
    process = psutil.Process(daemon.pid)
    # The first stream allocates what later ones reuse.
    _read(daemon.client, connection, 20 * MEGABYTE)
    before = process.memory_info().rss
    with PeakMemory(daemon.pid) as memory:
        start = time.perf_counter()
        received = _read(daemon.client, connection, megabytes * MEGABYTE)
        taken = time.perf_counter() - start
    after = process.memory_info().rss - before
    assert received == megabytes * MEGABYTE
    speed = f"{received / MEGABYTE / taken:.0f}"
    return name, str(megabytes), f"{taken:.1f}", speed, f"{memory.growth / 2**20:.1f}", f"{after / 2**20:.1f}"


def _read(client: Client, connection: str, size: int) -> int:
    received = until_pause = 0
    with client.shell.stream(connection, f"head -c {size} /dev/zero") as stream:
        for piece in stream:
            received += len(piece.stdout)
            until_pause += len(piece.stdout)
            if until_pause >= PAUSE_BYTES:
                until_pause = 0
                time.sleep(PAUSE_SECONDS)
    return received


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
