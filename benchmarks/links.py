"""A thousand ssh links of one daemon: how long they take to open, what each costs, and what they cost when idle.

Run it with ``python -m benchmarks.links [LINKS [BEHIND]]``: so many links to one sshd with its usual
``MaxStartups``, and so many through one gateway. The machine also runs the server, with two processes for each link.

``python -m benchmarks.links 5000 light`` opens more than a machine has memory for sessions of sshd, which take two
processes and some 2 MiB each: servers of asyncssh speak the protocol, and run each link's shell.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncssh
import psutil

from benchmarks.daemon import temporary_daemon
from benchmarks.ssh import add, server
from benchmarks.timing import print_table
from connmgr.contract.run import RunInfo
from tests.daemon import Daemon

REPEAT = "python -m benchmarks.links"
# By arguments, because the tests' helpers drop variables of the caller.
_GIVEN = sys.argv[1:3] if __name__ == "__main__" else []
IS_LIGHT = "light" in _GIVEN
_NUMBERS = [int(word) for word in _GIVEN if word != "light"]
LINKS, BEHIND = (*_NUMBERS, *(1000, 200)[len(_NUMBERS) :])
PARALLEL = 500
IDLE_SECONDS = 15
WAIT_SECONDS = 170.0
LIGHT_WAIT_SECONDS = 480.0

LINKS_OF_A_LIGHT_SERVER = 2500
"""It needs four descriptors for each."""

LIGHT_SERVER = """
import asyncio, subprocess, sys
import asyncssh

async def serve(process):
    child = subprocess.Popen(
        ["/bin/sh", "-c", process.command or "exec bash"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    await process.wait_closed()
    child.wait()

async def main():
    key, authorized = sys.argv[1:]
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[key], authorized_client_keys=authorized, process_factory=serve,
        encoding=None, backlog=1000, login_timeout=300,
    )
    print(server.get_port(), flush=True)
    await server.wait_closed()

asyncio.run(main())
"""


def main() -> None:
    """Open links by a run, use them again, and leave them alone; then the same through a gateway."""
    rows = []
    if IS_LIGHT:
        count = -(-LINKS // LINKS_OF_A_LIGHT_SERVER)
        with light_servers(count) as servers, temporary_daemon() as daemon:
            # Equal data would be one link; the field has bounds.
            new = [
                {"name": f"light {n}", "data": {**servers[n % count], "connectTimeout": 60 + n / 100}}
                for n in range(LINKS)
            ]
            connections = [str(one["connection"]) for one in daemon.client.post("/connection/apply", add=new)["added"]]
            rows.append(_measured(f"{LINKS} links to {count} servers of asyncssh", daemon, connections))
    else:
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


@contextmanager
def light_servers(count: int) -> Iterator[list[dict[str, object]]]:
    """Run ssh servers of asyncssh; yield the data of connections to them."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        host_key, client_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        host_key.write_private_key(str(directory / "host"))
        client_key.write_public_key(str(directory / "authorized"))
        found = []
        for _ in range(count):
            words = [sys.executable, "-c", LIGHT_SERVER, str(directory / "host"), str(directory / "authorized")]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=(directory / "log").open("ab"), text=True)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            assert process.stdout is not None
            found.append(
                {
                    "type": "ssh",
                    "host": "127.0.0.1",
                    "port": int(process.stdout.readline()),
                    "user": "light",
                    "identity": {"key": client_key.export_private_key().decode()},
                    "hostKey": " ".join(host_key.export_public_key().decode().split()[:2]),
                }
            )
        yield found


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
    info: RunInfo = daemon.client.runs.wait(begun.run, LIGHT_WAIT_SECONDS if IS_LIGHT else WAIT_SECONDS)
    failed = [one.error for one in daemon.client.runs.targets(info.run, ["unreachable", "failed", "unknown"])]
    assert (info.state, info.counts["done"]) == ("done", len(connections)), (info.state, info.counts, failed[:3])
    assert info.ended is not None
    return (info.ended - info.submitted).total_seconds()


if __name__ == "__main__":
    main()
