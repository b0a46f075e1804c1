"""Runs over many targets, beside what else runs a command on many hosts.

Run it with ``python -m benchmarks.fleet [SESSIONS [TARGETS]]``. The server is a temporary sshd on loopback. A
connection is in a run once, so 20,000 targets over 500 sessions are 40 runs, one after the other, on links and shells
that are open. Four daemons share a vault on PostgreSQL, and one machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import psutil

from benchmarks.daemon import temporary_daemon
from benchmarks.ssh import add, server
from benchmarks.timing import print_table
from connmgr.client import Client, Result
from connmgr.client.runs import RunInfo
from tests.daemon import Daemon
from tests.plugins.sshd import Sshd
from tests.vault.postgres import Postgres

REPEAT = "python -m benchmarks.fleet"
# By arguments, because the tests' helpers drop variables of the caller.
_GIVEN = [int(word) for word in sys.argv[1:3]] if __name__ == "__main__" else []
SESSIONS, TARGETS = (*_GIVEN, *(500, 20_000)[len(_GIVEN) :])
PARALLEL = 500
FORKS = 100
DAEMONS = 4
WAIT_SECONDS = 600.0


def main() -> None:
    """Measure runs of one daemon and of four, broadcasts in slices, and other tools, on the same sshd."""
    options = {"MaxStartups": str(2 * SESSIONS)}
    rows: list[tuple[str, ...]] = []
    with server(options) as sshd:
        with temporary_daemon() as daemon:
            connections = [add(daemon, sshd, number) for number in range(SESSIONS)]
            rows.append(_opening(daemon, connections))
            rows.append(_runs("runs, one daemon, SQLite", [daemon], connections))
            rows.append(_slices(daemon.client, connections))
        with four_daemons() as daemons:
            connections = [add(daemons[0], sshd, number) for number in range(SESSIONS)]
            # Each daemon opens the links of the targets that it claims first, and is their home from then on.
            for _ in range(2):
                _run(daemons[0].client, connections)
            rows.append(_runs(f"runs, {DAEMONS} daemons, PostgreSQL", daemons, connections))
        rows += _others(sshd)
    heads = ("", "targets", "s", "a second", "first start ms", "CPU s", "MiB")
    print_table(f"{TARGETS:,} targets over {SESSIONS} ssh sessions", heads, rows, repeat=REPEAT)


@contextmanager
def four_daemons() -> Iterator[list[Daemon]]:
    """Four daemons on one database of a temporary PostgreSQL server."""
    postgres = Postgres()
    try:
        with ExitStack() as stack:
            environment = {"CONNMGR_DATABASE_URL": postgres.dsn(postgres.create())}
            daemons: list[Daemon] = []
            for number in range(DAEMONS):
                home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                if daemons:
                    data = home / "data" / "connmgr"
                    data.mkdir(mode=0o700, parents=True)
                    (data / "vault.key").touch(0o600)
                    (data / "vault.key").write_bytes((daemons[0].data_dir / "vault.key").read_bytes())
                named = {**environment, "CONNMGR_DAEMON_NAME": f"control{number}"}
                daemons.append(Daemon(home, environment=named))
                stack.callback(daemons[-1].stop)
            yield daemons
    finally:
        postgres.stop()


def _opening(daemon: Daemon, connections: list[str]) -> tuple[str, ...]:
    """Open all links and shells, by a run in which that is what takes the time."""
    return _row("opening the links and shells, by a run", [daemon], [_run(daemon.client, connections)])


def _runs(name: str, daemons: list[Daemon], connections: list[str]) -> tuple[str, ...]:
    """Run a command on all connections, as often as the number of targets asks for."""
    before = [_spent(daemon) for daemon in daemons]
    infos = [_run(daemons[0].client, connections) for _ in range(max(1, TARGETS // len(connections)))]
    return _row(name, daemons, infos, sum(map(_spent, daemons)) - sum(before))


def _run(client: Client, connections: list[str]) -> RunInfo:
    begun = client.runs.start(connections=connections, command="true", parallel=PARALLEL)
    assert begun.run is not None
    info = client.runs.wait(begun.run, WAIT_SECONDS)
    assert (info.state, info.counts["done"]) == ("done", len(connections)), info
    return info


def _spent(daemon: Daemon) -> float:
    return sum(psutil.Process(daemon.pid).cpu_times()[:2])


def _row(name: str, daemons: list[Daemon], infos: list[RunInfo], cpu: float | None = None) -> tuple[str, ...]:
    # From the first request to the last end, by the daemon's own clock: the pauses between runs count.
    ends = [info.ended for info in infos if info.ended is not None]
    seconds = (max(ends) - min(info.submitted for info in infos)).total_seconds()
    starts = [(info.began - info.submitted).total_seconds() for info in infos if info.began is not None]
    targets = sum(info.targets for info in infos)
    memory = sum(psutil.Process(daemon.pid).memory_info().rss for daemon in daemons) / 1024 / 1024
    return (
        name,
        str(targets),
        f"{seconds:.2f}",
        f"{targets / seconds:.0f}",
        f"{1000 * median(starts):.0f}",
        "" if cpu is None else f"{cpu:.1f}",
        f"{memory:.0f}",
    )


def _slices(client: Client, connections: list[str]) -> tuple[str, ...]:
    """Broadcast to slices of the most connections that one request takes."""
    begun = time.perf_counter()
    rounds = max(1, TARGETS // len(connections))
    for _ in range(rounds):
        outcomes = list(client.shell.broadcast("true", connections, parallel=128))
        assert all(isinstance(one.result, Result) for one in outcomes)
    return _plain("exec --all in slices, kept nowhere", rounds * len(connections), time.perf_counter() - begun)


def _plain(name: str, targets: int, seconds: float) -> tuple[str, ...]:
    return (name, str(targets), f"{seconds:.2f}", f"{targets / seconds:.0f}", "", "", "")


def _others(sshd: Sshd) -> list[tuple[str, ...]]:
    """Time other tools on as many hosts as there are sessions: each opens its own links, once."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        known = Path(directory) / "known_hosts"
        lines = [sshd.known_hosts(f"[{_address(number)}]:{sshd.port}") for number in range(SESSIONS)]
        known.write_text("".join(lines))
        options = f"-F none -p {sshd.port} -i {sshd.client_key} -o UserKnownHostsFile={known}"
        hosts = [_address(number) for number in range(SESSIONS)]
        inventory = Path(directory) / "hosts"
        inventory.write_text("".join(f"{host}\n" for host in hosts))
        tools: dict[str, tuple[str, Callable[[str], list[str]]]] = {
            "ansible": (
                f"ansible -f {FORKS} -m raw",
                lambda program: [
                    *(program, "all", "-i", str(inventory), "-f", str(FORKS), "-m", "raw", "-a", "true"),
                    *("-u", sshd.user, f"--ssh-common-args={options}"),
                ],
            ),
            "clush": (
                f"clush -f {FORKS}",
                lambda program: [
                    *(program, "-f", str(FORKS), "-l", sshd.user, "-o", options, "-w", ",".join(hosts), "true"),
                ],
            ),
        }
        for tool, (name, argv) in tools.items():
            program = shutil.which(tool) or shutil.which(tool, path=str(Path(sys.executable).parent))
            if program is None:
                rows.append((f"{name}: not installed", "", "", "", "", "", ""))
                continue
            begun = time.perf_counter()
            done = subprocess.run(argv(program), stdin=subprocess.DEVNULL, capture_output=True, check=False)
            seconds = time.perf_counter() - begun
            failed = "" if done.returncode == 0 else f", exit code {done.returncode}"
            rows.append(_plain(f"{name}, opens links{failed}", SESSIONS, seconds))
    return rows


def _address(number: int) -> str:
    # All of 127/8 is this machine, and each address another host to the tool.
    return f"127.0.{number // 250}.{number % 250 + 1}"


if __name__ == "__main__":
    main()
