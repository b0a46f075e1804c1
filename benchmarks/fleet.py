"""Runs over many targets, beside what else runs a command on many hosts; and runs while something breaks.

``python -m benchmarks.fleet`` measures all, ``--part one``, ``four`` or ``others`` a third of it. The server is a
temporary sshd on loopback. A connection is in a run once, so 20,000 targets over 500 sessions are 40 runs, one after
the other, on links and shells that are open. Four daemons share a vault on PostgreSQL, and one machine.

``python -m benchmarks.fleet --faults 14 --seed 1`` breaks daemons, links and the database while runs go on. A cycle
takes about ten seconds, and one in seven keeps PostgreSQL away for 30. The remote side counts how often each target's
command has run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.daemon import temporary_daemon
from benchmarks.ssh import add, server
from benchmarks.timing import print_table
from connmgr.client import Client, Result
from connmgr.contract.run import RunInfo
from tests.api.wire import send
from tests.daemon import Daemon
from tests.plugins.sshd import Sshd
from tests.runs.faults import FAULTS, FaultWorld
from tests.vault.postgres import Postgres

REPEAT = "python -m benchmarks.fleet"
PARTS = ("one", "four", "others")
PARALLEL = 500
FORKS = 100
DAEMONS = 4
WAIT_SECONDS = 600.0
HEADS = ("", "targets", "s", "a second", "first start ms", "CPU s", "transactions a run", "MiB")


@dataclass(frozen=True)
class Size:
    """How many targets are run over how many ssh sessions."""

    sessions: int
    targets: int

    @property
    def rounds(self) -> int:
        return max(1, self.targets // self.sessions)


def main() -> None:
    """Measure runs of one daemon and of four, and what else runs on the same sshd; or break runs."""
    parser = argparse.ArgumentParser(prog=REPEAT)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--targets", type=int, default=20_000)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be given several times")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="break something N times instead")
    parser.add_argument("--seed", type=int, default=1, help="of what breaks when")
    parser.add_argument("--away", type=float, default=30.0, help="seconds for which PostgreSQL is away")
    # `python -m benchmarks fleet` has words of its own.
    given = parser.parse_args(sys.argv[1:] if sys.argv[0].endswith("fleet.py") else [])
    if given.faults:
        _break(given.faults, given.seed, given.away)
        return
    size, rows, parts = Size(given.sessions, given.targets), list[tuple[str, ...]](), given.part or PARTS
    with server({"MaxStartups": str(2 * FORKS)}) as sshd:
        if "one" in parts:
            with temporary_daemon() as daemon:
                connections = [add(daemon, sshd, number) for number in range(size.sessions)]
                rows.append(_opening(daemon, connections))
                rows.append(_runs("runs, one daemon, SQLite", [daemon], connections, size))
                rows.append(_slices(daemon.client, connections, size))
        if "four" in parts:
            for count in (1, DAEMONS):
                with daemons_on_postgres(count) as daemons:
                    connections = [add(daemons[0], sshd, number) for number in range(size.sessions)]
                    # Each daemon opens the links of the targets that it claims first, and is their home from then on.
                    for _ in range(2):
                        _run(daemons[0].client, connections)
                    name = f"runs, {count} {'daemon' if count == 1 else 'daemons'}, PostgreSQL"
                    rows.append(_runs(name, daemons, connections, size))
        if "others" in parts:
            rows += _ours(sshd, size)
            rows += _others(sshd, size)
    print_table(f"{size.targets:,} targets over {size.sessions} ssh sessions", HEADS, rows, repeat=REPEAT)


def _break(cycles: int, seed: int, away: float) -> None:
    """Run cycles with faults, print how they went, and exit with 1 if a promise was broken."""
    begun, broken = time.monotonic(), 0
    with FaultWorld(seed, away=away) as world:
        outcomes = []
        for outcome in world.cycles(cycles):
            outcomes.append(outcome)
            broken += bool(outcome.wrong)
            for wrong in outcome.wrong:
                print(f"  cycle {outcome.number}, {outcome.fault}: {wrong}", flush=True)
    rows = []
    for fault in FAULTS:
        those = [one for one in outcomes if one.fault == fault]
        if those:
            seconds = [one.seconds for one in those]
            states = [str(sum(one.states.get(state, 0) for one in those)) for state in ("done", "unknown")]
            wrong = str(sum(bool(one.wrong) for one in those))
            rows.append((fault, str(len(those)), *states, f"{median(seconds):.1f}", f"{max(seconds):.1f}", wrong))
    heads = ("what broke", "cycles", "done", "unknown", "median s", "longest s", "wrong")
    print_table("Runs while something breaks", heads, rows, repeat=f"{REPEAT} --faults {cycles} --seed {seed}")
    print(f"  {cycles} cycles in {time.monotonic() - begun:.0f} s; {broken} wrong")
    if broken:
        sys.exit(1)


@contextmanager
def daemons_on_postgres(count: int) -> Iterator[list[Daemon]]:
    """So many daemons on one database of a temporary PostgreSQL server."""
    postgres = Postgres()
    try:
        with ExitStack() as stack:
            environment = {"CONNMGR_DATABASE_URL": postgres.dsn(postgres.create())}
            daemons: list[Daemon] = []
            for number in range(count):
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


def _runs(name: str, daemons: list[Daemon], connections: list[str], size: Size) -> tuple[str, ...]:
    """Run a command on all connections, as often as the number of targets asks for."""
    spent, changes = sum(map(_spent, daemons)), sum(map(_changes, daemons))
    infos = [_run(daemons[0].client, connections) for _ in range(size.rounds)]
    spent, changes = sum(map(_spent, daemons)) - spent, sum(map(_changes, daemons)) - changes
    return _row(name, daemons, infos, f"{spent:.1f}", f"{changes / size.rounds:.1f}")


def _run(client: Client, connections: list[str]) -> RunInfo:
    begun = client.runs.start(connections=connections, command="true", parallel=PARALLEL)
    assert begun.run is not None
    info = client.runs.wait(begun.run, WAIT_SECONDS)
    assert (info.state, info.counts["done"]) == ("done", len(connections)), info
    return info


def _spent(daemon: Daemon) -> float:
    return sum(psutil.Process(daemon.pid).cpu_times()[:2])


def _changes(daemon: Daemon) -> int:
    """Return in how many transactions a daemon has changed the vault."""
    auth = {"type": "local", "authFileContent": daemon.auth_file.read_text()}
    begun = send(daemon.url, "/handshake", {"auth": auth, "client": {"type": "api", "name": "benchmark"}})
    headers = {"Authorization": f"Bearer {begun.json['sessionToken']}"}
    answer = send(daemon.url, "/metrics", headers=headers, method="GET")
    lines = answer.body.decode().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith("connmgr_vault_changes_total ")]
    return int(float(value))


def _row(
    name: str, daemons: list[Daemon], infos: list[RunInfo], cpu: str = "", transactions: str = ""
) -> tuple[str, ...]:
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
        cpu,
        transactions,
        f"{memory:.0f}",
    )


def _slices(client: Client, connections: list[str], size: Size) -> tuple[str, ...]:
    """Broadcast to slices of the most connections that one request takes."""
    begun = time.perf_counter()
    for _ in range(size.rounds):
        outcomes = list(client.shell.broadcast("true", connections, parallel=128))
        assert all(isinstance(one.result, Result) for one in outcomes)
    return _plain("exec --all in slices, kept nowhere", size.rounds * len(connections), time.perf_counter() - begun)


def _plain(name: str, targets: int, seconds: float) -> tuple[str, ...]:
    return (name, str(targets), f"{seconds:.2f}", f"{targets / seconds:.0f}", "", "", "", "")


def _ours(sshd: Sshd, size: Size) -> list[tuple[str, ...]]:
    """Time a run that opens its links, as other tools do, and a run and a broadcast on open ones: each once."""
    with temporary_daemon() as daemon:
        connections = [add(daemon, sshd, number) for number in range(size.sessions)]
        once = Size(size.sessions, size.sessions)
        return [
            _row("connmgr run, opens links", [daemon], [_run(daemon.client, connections)]),
            _row("connmgr run, links are open", [daemon], [_run(daemon.client, connections)]),
            _slices(daemon.client, connections, once),
        ]


def _others(sshd: Sshd, size: Size) -> list[tuple[str, ...]]:
    """Time other tools on as many hosts as there are sessions: each opens its own links, once."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        known = Path(directory) / "known_hosts"
        known.write_text(sshd.known_hosts("fleet") + sshd.known_hosts())
        options = f"-F none -p {sshd.port} -i {sshd.client_key} -o UserKnownHostsFile={known}"
        # Each is another host to the tool, and the same one to the network.
        options += " -o HostName=127.0.0.1 -o HostKeyAlias=fleet"
        hosts = [f"host{number}" for number in range(size.sessions)]
        inventory = Path(directory) / "hosts"
        inventory.write_text("".join(f"{host}\n" for host in hosts))
        deploy = Path(directory) / "hosts.py"
        data = {"ssh_user": sshd.user, "ssh_port": sshd.port, "ssh_key": str(sshd.client_key)}
        data |= {"ssh_known_hosts_file": str(known), "ssh_hostname": "127.0.0.1"}
        deploy.write_text(f"hosts = [(host, {data!r}) for host in {hosts!r}]\n")
        tools: dict[str, tuple[str, Callable[[str], list[str]]]] = {
            "ansible": (
                f"ansible -f {FORKS} -m raw",
                lambda program: [
                    *(program, "all", "-i", str(inventory), "-f", str(FORKS), "-m", "raw", "-a", "true"),
                    *("-u", sshd.user, f"--ssh-common-args={options}"),
                ],
            ),
            "pyinfra": (
                f"pyinfra --parallel {FORKS}",
                lambda program: [program, "-y", "--parallel", str(FORKS), str(deploy), "exec", "--", "true"],
            ),
            "clush": (
                f"clush -f {FORKS}",
                lambda program: [
                    *(program, "-f", str(FORKS), "-l", sshd.user, "-o", options, "-w", ",".join(hosts), "true"),
                ],
            ),
        }
        for tool, (name, argv) in tools.items():
            beside = Path(sys.executable).parent
            # pyinfra requires an older paramiko, and has an environment of its own.
            program = shutil.which(tool, path=f"{beside.parent / 'pyinfra' / 'bin'}:{beside}") or shutil.which(tool)
            if program is None:
                rows.append((f"{name}: not installed", "", "", "", "", "", "", ""))
                continue
            begun = time.perf_counter()
            done = subprocess.run(argv(program), stdin=subprocess.DEVNULL, capture_output=True, check=False)
            seconds = time.perf_counter() - begun
            failed = "" if done.returncode == 0 else f", exit code {done.returncode}"
            rows.append(_plain(f"{name}, opens links{failed}", size.sessions, seconds))
    return rows


if __name__ == "__main__":
    main()
