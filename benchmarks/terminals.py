"""The cost of unwatched terminals for a daemon: many idle ones, and one that prints as fast as it can.

Run it with ``python -m benchmarks.terminals``.
"""

from __future__ import annotations

import time
from typing import Any

import psutil

from benchmarks.daemon import LOCAL_MACHINE, temporary_daemon
from benchmarks.output import MEGABYTE
from benchmarks.timing import print_table
from connmgr.client import Client

REPEAT = "python -m benchmarks.terminals"
COUNT = 200
IDLE_SECONDS = 10.0
FLOOD_BYTES = 100 * MEGABYTE
FLOOD = f"yes | head -c {FLOOD_BYTES // 3 * 2}; echo the end; exec sleep 600"
"""A terminal turns the two bytes of each line into three."""

LONG_OUTPUT = 1 << 52
"""An offset beyond every output; the answer has the offset of its end."""

WAIT_SECONDS = 20
LOOKS = 5


def main() -> None:
    """Measure memory and CPU time of the daemon."""
    with temporary_daemon("--max-connection-terminals", str(COUNT + 1)) as daemon:
        process = psutil.Process(daemon.pid)
        _idle(daemon.client, process)
    with temporary_daemon() as daemon:
        _flood(daemon.client, psutil.Process(daemon.pid))


def _idle(client: Client, process: psutil.Process) -> None:
    # The first terminal loads modules, which are not counted.
    _shown(client, _open(client, "echo ready; cat"), "ready")
    before, threads, began = process.memory_info().rss, process.num_threads(), time.perf_counter()
    terminals = [_open(client, "echo ready; exec cat") for _ in range(COUNT)]
    opened = time.perf_counter() - began
    for terminal in terminals:
        _shown(client, terminal, "ready")
    grown, more = process.memory_info().rss - before, process.num_threads() - threads
    used = _used(process)
    time.sleep(IDLE_SECONDS)
    share = (_used(process) - used) / IDLE_SECONDS
    row = (f"{opened / COUNT * 1e3:.1f}", f"{grown / COUNT / 1024:.0f}", str(more), f"{share * 100:.2f}")
    heads = ("ms to open one", "KiB each", "threads more", "% of a core")
    print_table(f"{COUNT} terminals that nobody uses", heads, [row], repeat=REPEAT)


def _flood(client: Client, process: psutil.Process) -> None:
    used, began = _used(process), time.perf_counter()
    terminal = _open(client, FLOOD)
    while True:
        time.sleep(0.2)
        end = client.post("/terminal/output", terminal=terminal, offset=LONG_OUTPUT)["offset"]
        if end >= FLOOD_BYTES // 3 * 3:
            break
    printed = time.perf_counter() - began
    cost = _used(process) - used
    looks = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        _shown(client, terminal, "the end")
        looks.append(time.perf_counter() - began)
    row = (f"{FLOOD_BYTES / MEGABYTE / printed:.0f}", f"{cost:.2f}", f"{looks[0] * 1e3:.0f}", f"{looks[-1] * 1e3:.1f}")
    heads = ("MB/s", "daemon's CPU s", "first screen ms", "next screen ms")
    print_table(f"{FLOOD_BYTES // MEGABYTE} MB that nobody looks at", heads, [row], repeat=REPEAT)


def _open(client: Client, command: str) -> str:
    return str(client.post("/terminal/open", connection=LOCAL_MACHINE, command=command)["terminal"])


def _shown(client: Client, terminal: str, text: str) -> dict[str, Any]:
    shown: dict[str, Any] = client.post("/terminal/screen", terminal=terminal, contains=text, wait=WAIT_SECONDS)
    return shown


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
