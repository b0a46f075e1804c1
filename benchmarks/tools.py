"""``connmgr ssh`` beside ``ssh`` over a ControlMaster: its start, rsync, git, and the echo of a key.

Run it with ``python -m benchmarks.tools``. Both links are open beforehand.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pexpect

from benchmarks.daemon import temporary_daemon
from benchmarks.openssh import master, ssh_connection
from benchmarks.timing import interleaved, percentile, print_table, print_timings
from benchmarks.trees import FILES, plant
from tests.cli.program import DIRECTORY, CommandLine
from tests.plugins.oneself import ssh_server

REPEAT = "python -m benchmarks.tools"
LARGE = 500 * 1000 * 1000
PACK = 50 * 1000 * 1000
KEYS = 300
RUN_SECONDS = 300


def main() -> None:
    """Run all measurements."""
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        daemon = opened.enter_context(temporary_daemon())
        home = directory / "home"
        home.mkdir()
        # The user's start-up files are not measured.
        server = opened.enter_context(ssh_server(home))
        options = opened.enter_context(master(server))
        connection = ssh_connection(daemon, server)
        daemon.client.shell.start(connection)
        connmgr = [str(DIRECTORY / "connmgr"), "ssh"]
        rows = {"ssh": (["ssh", *options], f"{server.user}@127.0.0.1"), "connmgr ssh": (connmgr, connection)}
        environment = CommandLine(daemon).environment
        subjects = [Subject(name, words, host, environment) for name, (words, host) in rows.items()]
        starts(subjects)
        echo(subjects)
        rsync(subjects, directory)
        _git(subjects, directory)


class Subject:
    """An ssh command, and its name for the machine; ``prefix`` goes before the programs that it runs there."""

    def __init__(
        self, name: str, words: list[str], host: str, environment: Mapping[str, str], prefix: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.words = words
        self.host = host
        self.prefix = prefix
        self.environment = {**environment, "GIT_SSH_COMMAND": shlex.join(words), "GIT_SSH_VARIANT": "ssh"}

    def run(self, *argv: str) -> None:
        """Run a program that may start this ssh."""
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(argv, env=self.environment, stdin=nothing, stdout=nothing)
        # Not by a timeout of wait(): CPython 3.11 then sleeps between its looks, each time twice as long, and programs
        # seem to take 15.5, 31.5 or 63.5 ms.
        end = threading.Timer(RUN_SECONDS, process.kill)
        end.start()
        try:
            status = process.wait()
        finally:
            end.cancel()
        if status:
            raise subprocess.CalledProcessError(status, argv)

    def rsync(self, *argv: str) -> None:
        """Copy by rsync over this ssh."""
        there = ["--rsync-path", shlex.join([*self.prefix, "rsync"])] if self.prefix else []
        self.run("rsync", "-a", "-e", shlex.join(self.words), *there, *argv)


def starts(subjects: list[Subject]) -> None:
    calls: dict[str, Callable[[], object]] = {
        f"{one.name} … true": (lambda one=one: one.run(*one.words, one.host, "true")) for one in subjects
    }
    connmgr = subjects[-1]
    calls["connmgr exec … true"] = lambda: connmgr.run(connmgr.words[0], "exec", connmgr.host, "--", "true")
    taken = interleaved(calls, calls=3, rounds=9)
    print_timings("One command, as a whole process", taken, base="ssh … true", repeat=REPEAT)


@contextlib.contextmanager
def _typing(words: list[str], environment: Mapping[str, str]) -> Iterator[pexpect.spawn]:
    """Start a program on a terminal whose remote host echoes keys."""
    terminal = pexpect.spawn(words[0], words[1:], env=dict(environment), timeout=20)
    terminal.delaybeforesend = None
    try:
        terminal.expect_exact("ready")
        yield terminal
    finally:
        terminal.close(force=True)


def echo(subjects: list[Subject], repeat: str = REPEAT, title: str = f"The echo of {KEYS} keys") -> None:
    """Print the time until a key is echoed."""
    command = shlex.quote("stty -icanon; echo rea''dy; exec cat >/dev/null")
    taken: dict[str, list[float]] = {}
    with contextlib.ExitStack() as opened:
        terminals = {
            one.name: opened.enter_context(
                _typing([*one.words, "-tt", one.host, *one.prefix, "sh", "-c", command], one.environment)
            )
            for one in subjects
        }
        for number, (name, terminal) in itertools.product(range(KEYS), terminals.items()):
            key = chr(ord("a") + number % 26)
            began = time.perf_counter()
            terminal.send(key)
            terminal.expect_exact(key)
            taken.setdefault(name, []).append(time.perf_counter() - began)
            time.sleep(0.005)
    rows = [(name, *(f"{percentile(each, part) * 1e3:.2f}" for part in (50, 99))) for name, each in taken.items()]
    print_table(title, ("", "p50 ms", "p99 ms"), rows, repeat=repeat)


def rsync(
    subjects: list[Subject],
    directory: Path,
    repeat: str = REPEAT,
    *,
    files: int = FILES,
    rounds: int = 5,
    title: str = "rsync",
) -> None:
    if not shutil.which("rsync"):
        return
    tree, large, names = directory / "tree", directory / "large", itertools.count()
    plant(tree, files)
    with large.open("wb") as file:
        for _ in range(LARGE // 1_000_000):
            file.write(os.urandom(1_000_000))

    def copied(one: Subject, source: str, *, down: bool) -> Callable[[], None]:
        def call() -> None:
            target = directory / f"copy{next(names)}"
            here, there = (f"{one.host}:{source}", str(target)) if down else (source, f"{one.host}:{target}")
            one.rsync("--whole-file", here, there)
            shutil.rmtree(target) if target.is_dir() else target.unlink()

        return call

    for what, source in ((f"{files} files", f"{tree}/"), (f"a file of {LARGE // 1_000_000} MB", str(large))):
        for way in ("up", "down"):
            calls = {one.name: copied(one, source, down=way == "down") for one in subjects}
            taken = interleaved(calls, calls=1, rounds=rounds)
            print_timings(f"{title} of {what} {way}", taken, base="ssh", repeat=repeat)


def _git(subjects: list[Subject], directory: Path) -> None:
    if not shutil.which("git"):
        return
    repository, names = directory / "repository", itertools.count()
    author = ["-c", "user.name=me", "-c", "user.email=me@here", "-c", "core.compression=0"]
    subjects[0].run("git", "init", "-q", "-b", "main", str(repository))
    (repository / "large").write_bytes(os.urandom(PACK))
    subjects[0].run("git", "-C", str(repository), "add", "large")
    subjects[0].run("git", *author, "-C", str(repository), "commit", "-q", "-m", "large")

    def cloned(one: Subject) -> None:
        target = directory / f"clone{next(names)}"
        one.run("git", "clone", "-q", "--no-local", f"{one.host}:{repository}", str(target))
        shutil.rmtree(target)

    calls: dict[str, Callable[[], object]] = {one.name: (lambda one=one: cloned(one)) for one in subjects}
    title = f"git clone of {PACK // 1_000_000} MB"
    print_timings(title, interleaved(calls, calls=1, rounds=5), base="ssh", repeat=REPEAT)


if __name__ == "__main__":
    main()
