"""A thousand ssh links of one daemon: how long they take to open, what each costs, and what they cost when idle.

Run it with ``python -m benchmarks.links [LINKS [BEHIND]]``: so many links to one sshd with its usual
``MaxStartups``, and so many through one gateway. The machine also runs the server, with two processes for each link.
"""

from __future__ import annotations

import sys
import time

import psutil

from benchmarks.daemon import temporary_daemon
from benchmarks.ssh import add, server
from benchmarks.timing import print_table
from connmgr.contract.run import RunInfo
from tests.daemon import Daemon

REPEAT = "python -m benchmarks.links"
# By arguments, because the tests' helpers drop variables of the caller.
_GIVEN = [int(word) for word in sys.argv[1:3]] if __name__ == "__main__" else []
LINKS, BEHIND = (*_GIVEN, *(1000, 200)[len(_GIVEN) :])
PARALLEL = 500
IDLE_SECONDS = 15
WAIT_SECONDS = 170.0


def main() -> None:
    """Open links by a run, use them again, and leave them alone; then the same through a gateway."""
    rows = []
    with server({"MaxStartups": "10:30:100"}) as sshd, temporary_daemon() as daemon:
        connections = [add(daemon, sshd, number) for number in range(LINKS)]
        rows.append(_measured(f"{LINKS} links to one sshd", daemon, connections))
    with server({"MaxStartups": "10:30:100"}) as sshd, temporary_daemon() as daemon:
        gateway = add(daemon, sshd)
        behind = [add(daemon, sshd, number, gateway=gateway) for number in range(1, BEHIND + 1)]
        rows.append(_measured(f"{BEHIND} links through one gateway", daemon, behind))
    heads = (
        "",
        "opened in s",
        "a second",
        "again s",
        "KiB each",
        "threads each",
        "descriptors each",
        "idle, % of a core",
    )
    print_table("Links of one daemon", heads, rows, repeat=REPEAT)


def _measured(name: str, daemon: Daemon, connections: list[str]) -> tuple[str, ...]:
    process, count = psutil.Process(daemon.pid), len(connections)
    before, threads, descriptors = process.memory_info().rss, process.num_threads(), process.num_fds()
    opened, again = _run(daemon, connections), _run(daemon, connections)
    # Threads of the run's pool end with it.
    time.sleep(1)
    grown = process.memory_info().rss - before
    more_threads, more_descriptors = process.num_threads() - threads, process.num_fds() - descriptors
    spent = sum(process.cpu_times()[:2])
    time.sleep(IDLE_SECONDS)
    idle = (sum(process.cpu_times()[:2]) - spent) / IDLE_SECONDS
    return (
        name,
        f"{opened:.1f}",
        f"{count / opened:.0f}",
        f"{again:.2f}",
        f"{grown / count / 1024:.0f}",
        f"{more_threads / count:.2f}",
        f"{more_descriptors / count:.2f}",
        f"{idle * 100:.2f}",
    )


def _run(daemon: Daemon, connections: list[str]) -> float:
    """Run a command on all connections, and return the seconds from its request to its end."""
    begun = daemon.client.runs.start(connections=connections, command="true", parallel=min(PARALLEL, len(connections)))
    assert begun.run is not None
    info: RunInfo = daemon.client.runs.wait(begun.run, WAIT_SECONDS)
    failed = [one.error for one in daemon.client.runs.targets(info.run, ["unreachable", "failed", "unknown"])]
    assert (info.state, info.counts["done"]) == ("done", len(connections)), (info.state, info.counts, failed[:3])
    assert info.ended is not None
    return (info.ended - info.submitted).total_seconds()


if __name__ == "__main__":
    main()
