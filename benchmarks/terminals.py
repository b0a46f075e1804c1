"""The cost of terminals: many idle ones, and one that prints as fast as it can, beside tmux.

Run it with ``python -m benchmarks.terminals``. Both are started as a user starts them: ``connmgr shell`` and ``tmux``
on a terminal, where the user types the command, and leaves or stays to watch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import random
import shlex
import shutil
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import psutil

from benchmarks.daemon import LOCAL_MACHINE, temporary_daemon
from benchmarks.openssh import ssh_connection
from benchmarks.output import MEGABYTE
from benchmarks.timing import print_table
from connmgr.client import Client
from tests.cli.program import DIRECTORY, CommandLine
from tests.daemon import Daemon, clean_environment
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd

REPEAT = "python -m benchmarks.terminals"
COUNT = 200
IDLE_SECONDS = 10.0
FLOOD_BYTES = 100 * MEGABYTE
ROUNDS = 3
COLUMNS, ROWS = 80, 24
WAIT_SECONDS = 20
FLOOD_SECONDS = 300
THE_END = "that was the end"


def main() -> None:
    """Measure the daemon alone, and beside tmux."""
    with temporary_daemon("--max-connection-terminals", str(COUNT + 1)) as daemon:
        _idle(daemon.client, psutil.Process(daemon.pid))
    _floods()


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


class Flood(NamedTuple):
    """What one terminal's flood took: seconds to its end, the server's CPU seconds, seconds to the first screen."""

    seconds: float
    cpu: float
    screen: float


class Subject(Protocol):
    """A program that keeps terminals: its words, the keys that detach it, and its server's process."""

    words: Sequence[str]
    environment: Mapping[str, str]
    detach: bytes

    @property
    def pid(self) -> int: ...

    def screen(self) -> str:
        """Return the text on the screen of the newest terminal."""

    def close(self) -> None:
        """End the newest terminal."""


class Connmgr:
    """``connmgr shell`` on a connection."""

    detach: bytes = b"\r~d"

    def __init__(self, daemon: Daemon, connection: str) -> None:
        self.environment: Mapping[str, str] = CommandLine(daemon).environment
        self.pid = daemon.pid
        self.words: Sequence[str] = [str(DIRECTORY / "connmgr"), "shell", connection]
        self._client = daemon.client

    def screen(self) -> str:
        return "\n".join(self._client.terminal.screen(self._newest)["lines"])

    def close(self) -> None:
        self._client.terminal.close(self._newest)

    @property
    def _newest(self) -> str:
        return str(self._client.terminal.query()[-1]["terminal"])


class Tmux:
    """``tmux`` with a server of its own, which runs ``command`` or a shell."""

    detach: bytes = b"\x02d"

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        self.environment: Mapping[str, str] = clean_environment(directory) | {"TERM": "xterm", "SHELL": "/bin/bash"}
        self._tmux = ["tmux", "-S", str(directory / "socket"), "-f", "/dev/null", "-u"]
        self.words: Sequence[str] = [*self._tmux, "new-session", *([shlex.join(command)] if command else [])]

    @property
    def pid(self) -> int:
        return int(self._run("display-message", "-p", "#{pid}"))

    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def close(self) -> None:
        self._run("kill-server")

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout


class User:
    """A program on a terminal of this one's, whose output is read as it comes."""

    def __init__(self, subject: Subject) -> None:
        self._seen = b""
        self._changed = threading.Condition()
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            try:
                os.execvpe(subject.words[0], list(subject.words), subject.environment)
            finally:
                os._exit(127)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def expect(self, text: bytes) -> None:
        """Wait until the program has printed ``text`` since the last call."""
        with self._changed:
            if not self._changed.wait_for(lambda: text in self._seen, FLOOD_SECONDS):
                raise TimeoutError(f"{text!r} does not appear: {self._seen[-500:]!r}")
            self._seen = b""

    def wait(self) -> None:
        """Wait for the program's end."""
        os.waitpid(self.pid, 0)
        self._reader.join()
        os.close(self._terminal)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._terminal, 1 << 16):
                with self._changed:
                    self._seen = (self._seen + data)[-(1 << 16) :]
                    self._changed.notify()


def _floods() -> None:
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        daemon = opened.enter_context(temporary_daemon())
        home = directory / "home"
        home.mkdir()
        server = opened.enter_context(ssh_server(home))
        connection = ssh_connection(daemon, server)
        local: dict[str, Subject] = {"connmgr": Connmgr(daemon, LOCAL_MACHINE)}
        remote: dict[str, Subject] = {"connmgr": Connmgr(daemon, connection)}
        if shutil.which("tmux"):
            local["tmux"] = Tmux(directory, [])
            remote["tmux"] = Tmux(directory, _ssh(server))
        for title, (line, size) in LINES.items():
            _write(directory / "log", line, size)
            _compare(f"{size // MEGABYTE} MB of {title}, nobody looks", local, directory)
        _write(directory / "log", _log_line, FLOOD_BYTES)
        title = f"{FLOOD_BYTES // MEGABYTE} MB of log lines"
        _compare(f"{title}, one viewer", local, directory, watched=True)
        _compare(f"{title} over ssh, nobody looks", remote, directory)
        _compare(f"{title} over ssh, one viewer", remote, directory, watched=True)


def _compare(title: str, subjects: Mapping[str, Subject], directory: Path, *, watched: bool = False) -> None:
    taken: dict[str, list[Flood]] = {name: [] for name in subjects}
    for _ in range(ROUNDS):
        for name, subject in subjects.items():
            taken[name].append(_flooded(subject, directory, watched=watched))
    rows = []
    for name, floods in taken.items():
        seconds, cpu, screen = (median(values) for values in zip(*floods, strict=True))
        rows.append((name, f"{seconds:.2f}", f"{cpu:.2f}", f"{screen * 1e3:.0f}"))
    heads = ("", "seconds", "server's CPU s", "first screen ms")
    print_table(title, heads, rows, repeat=REPEAT)


def _flooded(subject: Subject, directory: Path, *, watched: bool) -> Flood:
    """Print the log in a new terminal of ``subject``."""
    go, done, script = directory / "go", directory / "done", directory / "flood"
    for pipe in (go, done):
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    begins, ends = shlex.quote(str(go)), shlex.quote(str(done))
    log = shlex.quote(str(directory / "log"))
    script.write_text(f"echo prepared; read x <{begins}; cat {log}; echo {THE_END}; echo >{ends}\n")
    user = User(subject)
    user.type(f"sh {shlex.quote(str(script))}\r".encode())
    user.expect(b"prepared")
    server = psutil.Process(subject.pid)
    if not watched:
        user.type(subject.detach)
        user.wait()
    used, began = _used(server), time.perf_counter()
    go.write_text("\n")
    done.read_text()
    if watched:
        user.expect(THE_END.encode())
    seconds = time.perf_counter() - began
    looked = time.perf_counter()
    while THE_END not in subject.screen():
        if time.perf_counter() - looked > WAIT_SECONDS:
            raise TimeoutError(f"the screen has not got to the end: {subject.screen()}")
    screen = time.perf_counter() - looked
    cpu = _used(server) - used
    subject.close()
    if watched:
        user.wait()
    return Flood(seconds, cpu, screen)


def _ssh(server: Sshd) -> list[str]:
    known = server.directory / "known_hosts"
    known.write_text(server.known_hosts())
    options = ["-F", "none", "-o", f"UserKnownHostsFile={known}", "-p", str(server.port), "-i", str(server.client_key)]
    return ["ssh", "-tt", *options, f"{server.user}@127.0.0.1"]


def _log_line(number: int, chance: random.Random) -> str:
    return (
        f"2026-01-31T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}Z "
        f"web{number % 7} INFO request id={chance.getrandbits(64):016x} path=/api/v1/items/{number} status=200 "
        f"took={chance.randint(1, 900)}ms\n"
    )


def _coloured_line(number: int, chance: random.Random) -> str:
    colour = 31 + number % 6
    return f"\x1b[{colour}mweb{number % 7}\x1b[0m \x1b[1mGET\x1b[22m /größe/{chance.getrandbits(32):08x} → 200 ✓\n"


LINES: dict[str, tuple[Callable[[int, random.Random], str], int]] = {
    "log lines": (_log_line, FLOOD_BYTES),
    "coloured lines": (_coloured_line, FLOOD_BYTES),
    # The kernel's terminal takes longer over these than any program does.
    "lines of one letter": (lambda *_: "y\n", FLOOD_BYTES // 10),
}
"""What is printed, and how many bytes of it."""


def _write(file: Path, line: Callable[[int, random.Random], str], most: int) -> None:
    # The same file in every run.
    chance, size, number = random.Random(0), 0, 0
    with file.open("wb") as log:
        while size < most:
            size += log.write("".join(line(number + one, chance) for one in range(1000)).encode())
            number += 1000


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
