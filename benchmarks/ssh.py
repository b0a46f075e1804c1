"""SSH through the daemon beside the alternatives: ssh with ControlMaster, paramiko, fabric and asyncssh.

Run it with ``python -m benchmarks.ssh``. The server is a temporary sshd on loopback; the login has no start-up
files. When root runs the benchmark, it is a temporary user.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import asyncssh
import fabric
import paramiko
import psutil

from benchmarks.daemon import temporary_daemon
from benchmarks.timing import interleaved, print_table, print_timings
from connmgr.client import Client, Result
from tests.daemon import Daemon
from tests.plugins import users
from tests.plugins.sshd import Sshd, privilege_separation

REPEAT = "python -m benchmarks.ssh"
SESSIONS = 50
COMMANDS_EACH = 20
BROADCAST = "/shell/broadcast true, one client"
BROADCAST_CONNECTIONS = 500
IDLE_SESSIONS = 100
IDLE_SHELLS = 15
IDLE_SECONDS = 20


def main() -> None:
    """Measure a command, the opening of a session, fifty and five hundred sessions at once, and idle ones."""
    with server() as sshd, temporary_daemon("--threads", str(SESSIONS + 14)) as daemon:
        _commands(daemon, sshd)
        _opening(daemon, sshd)
        _at_once(daemon, sshd)
    with server() as sshd, temporary_daemon() as daemon:
        _idle(daemon, sshd)
    _many_at_once()


@contextmanager
def server(options: Mapping[str, str] | None = None) -> Iterator[Sshd]:
    """Start an sshd with ``options``, and create a user if needed."""
    with ExitStack() as stack:
        stack.enter_context(privilege_separation())
        user = None
        if os.geteuid() == 0:
            created = users.create()
            stack.callback(users.remove, created)
            user = created.name
        else:
            home = stack.enter_context(tempfile.TemporaryDirectory())
            options = {"SetEnv": f"LANG=C.UTF-8 HOME={home}", **(options or {})}
        sshd = Sshd(options, user=user)
        stack.callback(sshd.close)
        yield sshd


def add(daemon: Daemon, sshd: Sshd, number: int = 0, **more: Any) -> str:
    """Add a connection to the server, distinct for each ``number``, with ``more`` in its data; return its uuid."""
    data = {
        "type": "ssh",
        "host": "127.0.0.1",
        "port": sshd.port,
        "user": sshd.user,
        "identity": {"key": sshd.client_key.read_text()},
        "hostKey": " ".join(sshd.known_hosts().split()[1:3]),
        "connectTimeout": 60 + number / 10,
        **more,
    }
    added = daemon.client.post("/connection/add", name=f"server {number}", data=data, validate=False)
    return str(added["connection"])


def ssh(sshd: Sshd, *options: str) -> list[str]:
    """Return the argv of ssh to the server, up to the command."""
    known = sshd.directory / "known_hosts"
    known.write_text(sshd.known_hosts())
    argv = ["ssh", "-F", "none", "-i", str(sshd.client_key), "-o", f"UserKnownHostsFile={known}"]
    return [*argv, "-p", str(sshd.port), "-l", sshd.user, *options, "127.0.0.1"]


def _commands(daemon: Daemon, sshd: Sshd) -> None:
    connection = add(daemon, sshd)
    daemon.client.post("/shell/start", connection=connection)
    with ExitStack() as stack:
        through_master = stack.enter_context(master(sshd))
        client = stack.enter_context(_paramiko(sshd))
        fabric_run = stack.enter_context(_fabric(sshd))
        asyncssh_run = stack.enter_context(_asyncssh(sshd))

        def paramiko_run() -> None:
            _, stdout, _ = client.exec_command("true")
            stdout.channel.recv_exit_status()

        def execute(command: str) -> Callable[[], object]:
            return lambda: daemon.client.post("/shell/exec", connection=connection, command=command)

        taken = interleaved(
            {
                "bare request": lambda: daemon.client.post("/daemon/version"),
                "/shell/exec true": execute("true"),
                "/shell/exec /bin/true": execute("/bin/true"),
                "ssh -S true": lambda: subprocess.run([*through_master, "true"], check=True),
                "paramiko exec_command true": paramiko_run,
                "fabric run true": lambda: fabric_run("true"),
                "asyncssh run true": lambda: asyncssh_run("true"),
            },
            calls=20,
        )
    print_timings("A command on an open ssh connection", taken, base="/shell/exec true", repeat=REPEAT)


@contextmanager
def master(sshd: Sshd) -> Iterator[list[str]]:
    """Run an ssh that keeps a connection open; yield the argv of an ssh over it, up to the command."""
    with tempfile.TemporaryDirectory() as directory:
        socket = Path(directory) / "master"
        argv = ssh(sshd, "-S", str(socket))
        process = subprocess.Popen([*argv[:-1], "-M", "-N", argv[-1]])
        deadline = time.monotonic() + 20
        while not socket.exists():
            assert time.monotonic() < deadline, "the master connection does not come up"
            time.sleep(0.01)
        try:
            yield argv
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def _paramiko(sshd: Sshd) -> Iterator[paramiko.SSHClient]:
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect("127.0.0.1", sshd.port, sshd.user, key_filename=str(sshd.client_key), **_ONLY_THIS_KEY)
    try:
        yield client
    finally:
        client.close()


_ONLY_THIS_KEY = {"look_for_keys": False, "allow_agent": False}


@contextmanager
def _fabric(sshd: Sshd) -> Iterator[Callable[[str], object]]:
    arguments = {"key_filename": str(sshd.client_key), **_ONLY_THIS_KEY}
    with fabric.Connection("127.0.0.1", sshd.user, sshd.port, connect_kwargs=arguments) as connection:
        yield lambda command: connection.run(command, hide=True)


@contextmanager
def _asyncssh(sshd: Sshd) -> Iterator[Callable[[str], object]]:
    loop = asyncio.new_event_loop()
    key = str(sshd.client_key)
    connecting = asyncssh.connect("127.0.0.1", sshd.port, username=sshd.user, client_keys=[key], known_hosts=None)
    connection = loop.run_until_complete(connecting)
    try:
        yield lambda command: loop.run_until_complete(connection.run(command, check=True))
    finally:
        connection.close()
        loop.run_until_complete(connection.wait_closed())
        loop.close()


def _opening(daemon: Daemon, sshd: Sshd) -> None:
    connection = add(daemon, sshd, 1)
    argv = ssh(sshd)

    def start() -> None:
        daemon.client.post("/shell/start", connection=connection)

    def another() -> None:
        daemon.client.post("/shell/start", connection=connection, session="another")

    def connect() -> None:
        with _paramiko(sshd):
            return

    rivals = {
        "/shell/start": start,
        "/shell/start, another on the connection": another,
        "ssh true": lambda: subprocess.run([*argv, "true"], check=True),
        "SSHClient": connect,
    }
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(20):
        for name, call in rivals.items():
            begun = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - begun)
        daemon.client.post("/shell/stop", connection=connection, all=True)
    print_timings("Opening an ssh session", taken, base="/shell/start", repeat=REPEAT)


def _at_once(daemon: Daemon, sshd: Sshd) -> None:
    connections = [add(daemon, sshd, 100 + number) for number in range(SESSIONS)]
    for connection in connections:
        daemon.client.post("/shell/start", connection=connection)
    clients = [Client(daemon.url, auth_file=daemon.auth_file) for _ in connections]

    def bare_request(number: int) -> None:
        clients[number].post("/daemon/version")

    def through_daemon(number: int) -> None:
        clients[number].post("/shell/exec", connection=connections[number], command="true")

    with ExitStack() as stack:
        transports = []
        for _ in connections:
            transport = stack.enter_context(_paramiko(sshd)).get_transport()
            assert transport
            transport.sock.setsockopt(6, 1, 1)
            transports.append(transport)
        masters = [stack.enter_context(master(sshd)) for _ in connections]

        def channel_each(number: int) -> None:
            with transports[number].open_session() as channel:
                channel.exec_command("true")
                channel.recv_exit_status()

        def process_each(number: int) -> None:
            subprocess.run([*masters[number], "true"], stdin=subprocess.DEVNULL, check=True)

        ways: dict[str, Callable[[int], None]] = {
            "bare request": bare_request,
            "/shell/exec true": through_daemon,
            "paramiko, NODELAY, a channel a command": channel_each,
            "ssh -S true, a process a command": process_each,
        }
        rates: dict[str, list[float]] = {name: [] for name in [*ways, BROADCAST]}
        for _ in range(3):
            for name, work in ways.items():
                rates[name].append(_rate(work))
            rates[BROADCAST].append(_broadcast_rate(daemon.client, connections))
    rows = [(name, f"{median(found):.0f}") for name, found in rates.items()]
    print_table(f"{SESSIONS} ssh sessions at once", ("", "a second"), rows, repeat=REPEAT)
    for connection in connections:
        daemon.client.post("/shell/stop", connection=connection)


def _rate(work: Callable[[int], None]) -> float:
    """Return the calls of ``work`` a second in one thread for each session."""

    def repeat(number: int) -> None:
        for _ in range(COMMANDS_EACH):
            work(number)

    threads = [threading.Thread(target=repeat, args=[number]) for number in range(SESSIONS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return SESSIONS * COMMANDS_EACH / (time.perf_counter() - begun)


def _broadcast_rate(client: Client, connections: list[str]) -> float:
    """Return the commands a second of one client whose requests each reach all sessions."""
    begun = time.perf_counter()
    for _ in range(COMMANDS_EACH):
        outcomes = list(client.shell.broadcast("true", connections, parallel=len(connections)))
        assert len(outcomes) == len(connections)
    return len(connections) * COMMANDS_EACH / (time.perf_counter() - begun)


def _many_at_once() -> None:
    with server({"MaxStartups": f"{BROADCAST_CONNECTIONS}"}) as sshd, temporary_daemon() as daemon:
        connections = [add(daemon, sshd, number) for number in range(BROADCAST_CONNECTIONS)]
        process, rows = psutil.Process(daemon.pid), []
        for what in ("starting the shells", "again, all shells run"):
            before, begun = process.memory_info().rss, time.perf_counter()
            outcomes = list(daemon.client.shell.broadcast("true", connections))
            taken = time.perf_counter() - begun
            assert all(isinstance(one.result, Result) for one in outcomes)
            grown = process.memory_info().rss - before
            rows.append(
                (
                    what,
                    f"{taken:.2f}",
                    f"{BROADCAST_CONNECTIONS / taken:.0f}",
                    f"{grown / BROADCAST_CONNECTIONS / 1024:.0f}",
                )
            )
    heads = ("", "s", "a second", "KiB each")
    print_table(f"{BROADCAST_CONNECTIONS} ssh connections by one broadcast", heads, rows, repeat=REPEAT)


def _idle(daemon: Daemon, sshd: Sshd) -> None:
    warm = add(daemon, sshd)
    daemon.client.post("/shell/start", connection=warm)
    process = psutil.Process(daemon.pid)
    before = process.memory_info().rss
    for number in range(1, IDLE_SESSIONS + 1):
        daemon.client.post("/shell/start", connection=add(daemon, sshd, number))
    grown = process.memory_info().rss - before
    busy = sum(process.cpu_times()[:2])
    time.sleep(IDLE_SECONDS)
    share = (sum(process.cpu_times()[:2]) - busy) / IDLE_SECONDS
    before = process.memory_info().rss
    for number in range(IDLE_SHELLS):
        daemon.client.post("/shell/start", connection=warm, session=f"more-{number}")
    more = process.memory_info().rss - before
    rows = [
        (
            f"{IDLE_SESSIONS} sessions, each on a connection of its own",
            f"{grown / IDLE_SESSIONS / 1024:.0f}",
            f"{share * 100:.2f}",
        ),
        (f"{IDLE_SHELLS} more on one connection", f"{more / IDLE_SHELLS / 1024:.0f}", ""),
    ]
    print_table("Idle ssh sessions", ("", "KiB each", "% of a core"), rows, repeat=REPEAT)


if __name__ == "__main__":
    main()
