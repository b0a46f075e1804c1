"""The output of full-screen programs, and what a real terminal shows of it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deadlines import eventually, settled

COLUMNS, ROWS = 80, 24
QUIET_SECONDS = 0.4
OUTPUT_SECONDS = 20.0


def recorded(argv: Sequence[str], keys: Iterable[bytes], home: Path) -> bytes:
    """Return what ``argv`` prints on a terminal; each of ``keys`` is sent once the output pauses."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(home)
            os.execvpe(argv[0], list(argv), environment)
        finally:
            os._exit(127)
    output = b""
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        output += _until_silent(terminal)
        for key in keys:
            os.write(terminal, key)
            output += _until_silent(terminal)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return output


def _until_silent(terminal: int) -> bytes:
    output, until = b"", time.monotonic() + OUTPUT_SECONDS
    while time.monotonic() < until:
        if not select.select([terminal], [], [], QUIET_SECONDS if output else OUTPUT_SECONDS)[0]:
            break
        try:
            output += os.read(terminal, 65536)
        except OSError:
            break
    assert output, "the program prints nothing"
    return output


@dataclass(frozen=True)
class Shown:
    """What tmux shows: the text of its lines, and the position of its cursor."""

    lines: list[str]
    cursor: tuple[int, int]


class Tmux:
    """A tmux of the test's own; each call shows an output in a new session."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._socket = directory / "tmux"
        self._count = 0
        # The server ends with its last session.
        self._run("new-session", "-d", "-s", "first", "sleep 600")

    def show(self, output: bytes, columns: int = COLUMNS, rows: int = ROWS) -> Shown:
        """Return what tmux shows of ``output``."""
        self._count += 1
        content, done = (self._directory / f"{name}{self._count}" for name in ("output", "done"))
        content.write_bytes(output)
        command = f"stty raw -echo; cat {shlex.quote(str(content))}; : >{shlex.quote(str(done))}; sleep 60"
        session = f"s{self._count}"
        size = ["-x", str(columns), "-y", str(rows)]
        self._run("new-session", "-d", "-s", session, *size, command)
        self._run("set-option", "-t", session, "status", "off")
        self._run("resize-window", "-t", session, *size)
        eventually(done.exists, "tmux does not show what it is given")
        shown = self._settled(session)
        self._run("kill-session", "-t", session)
        return shown

    def _settled(self, session: str) -> Shown:
        def look() -> tuple[str, str]:
            text = self._run("capture-pane", "-p", "-t", session)
            return text, self._run("display-message", "-p", "-t", session, "#{cursor_x} #{cursor_y}")

        text, place = settled(look, 0.1, "tmux never stops drawing")
        x, y = map(int, place.split())
        return Shown([line.rstrip() for line in text.split("\n")[:-1]], (x, y))

    def close(self) -> None:
        subprocess.run(self._argv("kill-server"), env=self._environment, capture_output=True, check=False)

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            self._argv(*words),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=OUTPUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"tmux {words}: {done.stderr}"
        return done.stdout

    def _argv(self, *words: str) -> list[str]:
        return ["tmux", "-S", str(self._socket), "-f", "/dev/null", "-u", *words]

    @property
    def _environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self._directory), "LANG": "C.UTF-8", "SHELL": "/bin/sh"}


@contextmanager
def tmux() -> Iterator[Tmux]:
    # The path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="cm-tmux-") as directory:
        running = Tmux(Path(directory))
        try:
            yield running
        finally:
            running.close()
