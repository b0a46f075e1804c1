"""``ssh`` at the daemon's control sockets beside ``ssh`` over a ControlMaster of its own, in one run.

Run it with ``python -m benchmarks.mux``, or with words that the names of some parts begin with. All links are open
beforehand. Sudo is measured where it asks this user for no password. ``python -m benchmarks.mux gigabit`` runs the
copies over a loopback interface of 1 Gbit/s, in a network namespace of their own; it needs root, ip and tc.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from benchmarks.daemon import temporary_daemon
from benchmarks.openssh import master, ssh_connection
from benchmarks.timing import interleaved, print_table, print_timings
from benchmarks.tools import Subject, echo, rsync
from tests.cli.program import DIRECTORY, CommandLine
from tests.daemon import Daemon
from tests.plugins.oneself import ssh_server

REPEAT = "python -m benchmarks.mux"
LARGE_MB = 300
COPIED = 100 * 1000 * 1000
FILES = 20_000
AT_ONCE = 40
SOCKETS = 5000
SESSIONS = 1000
SUDO = ["sudo", "-n"]
MASTER, OURS = "ssh", "control socket"
GIGABIT = 'ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 256kb latency 50ms && exec "$@"'


def main() -> None:
    """Run all measurements, or those named on the command line."""
    if "gigabit" in sys.argv[1:]:
        program = [sys.executable, "-m", "benchmarks.mux", "cp"]
        os.execvp("unshare", ["unshare", "--net", "sh", "-c", GIGABIT, "sh", *program])
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        daemon = opened.enter_context(temporary_daemon())
        home = directory / "home"
        home.mkdir()
        many = {"MaxSessions": "100", "MaxStartups": "100", "Subsystem": "sftp internal-sftp"}
        server = opened.enter_context(ssh_server(home, **many))
        options = opened.enter_context(master(server))
        connection = ssh_connection(daemon, server)
        daemon.client.shell.start(connection)
        environment = CommandLine(daemon).environment
        ssh = ["ssh", "-F", "none", "-S"]
        subjects = [
            Subject(MASTER, ["ssh", *options], f"{server.user}@127.0.0.1", environment),
            Subject(OURS, [*ssh, _socket(daemon, connection)], "web", environment),
        ]
        parts: dict[str, Callable[[], object]] = {}
        sides = {"": subjects, **({} if _sudo_asks() else {"sudo-": _through_sudo(daemon, connection, subjects, ssh)})}
        for side, both in sides.items():
            through = ", through sudo" if side else ""
            parts |= {
                f"{side}commands": partial(_commands, both, title=f"ssh … true, as a whole process{through}"),
                f"{side}crowd": partial(_crowd, both, title=f"{AT_ONCE} commands at once{through}"),
                f"{side}bytes": partial(_bytes, both, directory, title=f"{LARGE_MB} MB of random bytes{through}"),
                f"{side}echo": partial(echo, both, repeat=REPEAT, title=f"The echo of keys{through}"),
                f"{side}rsync": partial(
                    rsync, both, directory, repeat=REPEAT, files=FILES, rounds=3, title=f"rsync{through},"
                ),
            }
        parts |= {
            "cp": lambda: _copies(subjects, connection, directory),
            "sessions": lambda: _sessions(daemon, subjects[1]),
            "sockets": lambda: _sockets(daemon),
        }
        # python -m benchmarks names whole modules.
        wanted = tuple(sys.argv[1:]) if any(name.startswith(tuple(sys.argv[1:])) for name in parts) else ("",)
        for name, part in parts.items():
            if name.startswith(wanted):
                part()


def _socket(daemon: Daemon, connection: str) -> str:
    return str(daemon.client.post("/multiplex/open", connections=[connection])["sockets"][0]["path"])


def _commands(subjects: list[Subject], title: str) -> None:
    calls: dict[str, Callable[[], object]] = {}
    master = subjects[0]
    if not master.prefix:
        # What any start of ssh costs; it prints its version on standard error.
        calls["ssh -V"] = lambda: subprocess.run(["ssh", "-V"], stderr=subprocess.DEVNULL, check=True)
    else:
        # A connection with sudo takes any line, as ssh does, and so has a shell of the user read it.
        calls[f"{MASTER}, by a shell there"] = lambda: master.run(
            *master.words, master.host, *master.prefix, "-s", "true"
        )
    for one in subjects:
        calls[one.name] = lambda one=one: one.run(*one.words, one.host, *one.prefix, "true")  # type: ignore[misc]
    print_timings(title, interleaved(calls, calls=5, rounds=15), base=MASTER, repeat=REPEAT)


def _crowd(subjects: list[Subject], title: str) -> None:
    def all_at_once(one: Subject) -> Callable[[], None]:
        def call() -> None:
            argv = [*one.words, one.host, *one.prefix, "true"]
            nothing = subprocess.DEVNULL
            running = [
                subprocess.Popen(argv, env=one.environment, stdin=nothing, stdout=nothing) for _ in range(AT_ONCE)
            ]
            assert [process.wait(60) for process in running] == [0] * AT_ONCE

        return call

    taken = interleaved({one.name: all_at_once(one) for one in subjects}, calls=1, rounds=9)
    print_timings(title, taken, base=MASTER, repeat=REPEAT)


def _bytes(subjects: list[Subject], directory: Path, title: str) -> None:
    """Print the speed of much data each way, between pipes and files."""
    content = directory / "content"
    if not content.exists():
        with content.open("wb") as file:
            for _ in range(LARGE_MB):
                file.write(os.urandom(1_000_000))

    def copied(one: Subject, *, down: bool, by_pipe: bool) -> Callable[[], None]:
        ssh = shlex.join([*one.words, one.host, *one.prefix])
        read, write = f"cat {content}", "cat >/dev/null"
        if down:
            line = f"{ssh} {shlex.quote(read)}" + (" | cat >/dev/null" if by_pipe else f" >{directory}/got")
        else:
            line = (
                (f"{read} | " if by_pipe else "") + f"{ssh} {shlex.quote(write)}" + ("" if by_pipe else f" <{content}")
            )
        return lambda: one.run("sh", "-c", line)

    calls = {
        f"{one.name}, {'down' if down else 'up'}, {'pipes' if by_pipe else 'files'}": copied(
            one, down=down, by_pipe=by_pipe
        )
        for down in (True, False)
        for by_pipe in (True, False)
        for one in subjects
    }
    taken = interleaved(calls, calls=1, rounds=5)
    rows = []
    for name, seconds in taken.items():
        base = median(taken[name.replace(OURS, MASTER)])
        rows.append(
            (name, f"{median(seconds):.2f}", f"{LARGE_MB / median(seconds):.0f}", f"{base / median(seconds):.2f}")
        )
    print_table(
        title,
        ("", "median s", "MB/s", f"speed x {MASTER}"),
        rows,
        repeat=REPEAT,
    )


def _copies(subjects: list[Subject], connection: str, directory: Path) -> None:
    """Print how long ``connmgr cp`` takes beside scp over the ControlMaster, all as whole processes.

    Unlike scp, what ``connmgr cp`` sends is flushed to the disk there and compared by its SHA-256 before it gets its
    name. So it also stands beside scp with these two steps, which both ends take at the same time.
    """
    source, target, back = directory / "one", directory / "copied", directory / "back"
    source.write_bytes(os.urandom(COPIED))
    scp = ["scp", "-q", *subjects[0].words[1:]]
    connmgr = [str(DIRECTORY / "connmgr"), "cp", "-q"]
    sides = {"scp": (subjects[0], scp, subjects[0].host), "connmgr cp": (subjects[1], connmgr, connection)}
    for way in ("up", "down"):
        calls: dict[str, Callable[[], object]] = {}
        for name, (subject, words, host) in sides.items():
            operands = [str(source), f"{host}:{target}"] if way == "up" else [f"{host}:{source}", str(back)]
            calls[name] = lambda subject=subject, argv=[*words, *operands]: subject.run(*argv)  # type: ignore[misc]
        if way == "up":
            calls["scp, sync and sha256"] = lambda: subjects[0].run(
                "sh", "-c", _checked(subjects[0], scp, source, target)
            )
        title = f"A file of {COPIED // 1_000_000} MB {way}, as a whole process"
        print_timings(title, interleaved(calls, calls=1, rounds=9), base="scp", repeat=REPEAT)


def _checked(ssh: Subject, scp: list[str], source: Path, target: Path) -> str:
    """Return a line that copies by scp, flushes the copy, and compares the SHA-256 of both files."""
    digest, ours, theirs = "openssl dgst -r -sha256", f"{source}.sum", f"{target}.sum"
    copy = shlex.join([*scp, str(source), f"{ssh.host}:{target}"])
    there = shlex.join([*ssh.words, ssh.host, f"sync {target} & {digest} {target} && wait"])
    same = f'[ "$(cut -c -64 {ours})" = "$(cut -c -64 {theirs})" ]'
    return f"{copy} && {{ {digest} {source} >{ours} & {there} >{theirs} && wait && {same}; }}"


def _sudo_asks() -> bool:
    """Whether sudo asks this user for a password, or is not there."""
    nothing = subprocess.DEVNULL
    return subprocess.run(["sh", "-c", 'exec "$@"', "sh", *SUDO, "true"], stdin=nothing, stderr=nothing).returncode != 0


def _through_sudo(daemon: Daemon, connection: str, subjects: list[Subject], ssh: list[str]) -> list[Subject]:
    """Return both sides as root there."""
    data = {"type": "shellEnvironment", "host": connection, "elevated": True}
    root = str(daemon.client.post("/connection/add", name="root", data=data, validate=False)["connection"])
    daemon.client.shell.start(root)
    theirs, ours = subjects
    return [
        Subject(MASTER, theirs.words, theirs.host, theirs.environment, SUDO),
        Subject(OURS, [*ssh, _socket(daemon, root)], "root", ours.environment),
    ]


def _sessions(daemon: Daemon, ours: Subject) -> None:
    """Print what sessions leave behind whose clients are killed, a hundred at a time."""
    process = psutil.Process(daemon.pid)
    rows = [_footprint("before", process)]
    argv = [*ours.words, ours.host, "echo ready; exec cat"]
    pipe = subprocess.PIPE
    for _ in range(SESSIONS // 100):
        running = []
        for _ in range(100):
            one = subprocess.Popen(argv, env=ours.environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            running.append(one)
        for one in running:
            assert one.stdout is not None
            one.stdout.readline()
        for one in running:
            one.kill()
            one.communicate(timeout=60)
        if len(rows) == 1:
            _settled(process, rows[0])
            rows.append(_footprint("100 sessions opened and left", process))
    _settled(process, rows[0])
    rows.append(_footprint(f"{SESSIONS} sessions opened and left", process))
    # Idle threads of a loop end after 30 s.
    deadline = time.monotonic() + 45
    while process.num_threads() > int(rows[0][1]) + 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    rows.append(_footprint("some seconds later", process))
    print_table("What is left", ("", "threads", "descriptors", "RSS MB"), rows, repeat=REPEAT)


def _settled(process: psutil.Process, before: tuple[str, ...]) -> None:
    """Wait until the daemon has as many descriptors as ``before``, or nearly so."""
    deadline = time.monotonic() + 30
    while process.num_fds() > int(before[2]) + 10 and time.monotonic() < deadline:
        time.sleep(0.1)


def _sockets(daemon: Daemon) -> None:
    """Print what many control sockets cost."""
    process = psutil.Process(daemon.pid)
    data = {"type": "local"}
    for number in range(SOCKETS):
        daemon.client.post(
            "/connection/add", name=f"host{number}", data={**data, "shell": f"sh{number}"}, validate=False
        )
    daemon.client.post("/multiplex/query")
    rows = [_footprint(f"{SOCKETS} connections", process)]
    began = time.perf_counter()
    daemon.client.post("/multiplex/open")
    seconds = time.perf_counter() - began
    rows.append(_footprint(f"{SOCKETS} control sockets, opened in {seconds:.1f} s", process))
    print_table("Control sockets", ("", "threads", "descriptors", "RSS MB"), rows, repeat=REPEAT)


def _footprint(what: str, process: psutil.Process) -> tuple[str, ...]:
    return what, str(process.num_threads()), str(process.num_fds()), f"{process.memory_info().rss / 1e6:.0f}"


if __name__ == "__main__":
    main()
