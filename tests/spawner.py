"""Starts daemons by forking a process that has the program loaded, for loading takes longer than most tests.

What is forked is told from ``python -m connmgr`` by its command line in the system's list of processes, and by nothing
that the program does: importing its modules starts and builds nothing (tests/test_layering.py).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = (
    *("connmgr.cli.serve", "connmgr.daemon", "connmgr_elevated", "connmgr_local", "connmgr_ssh"),
    *("alembic.command", "alembic.config", "alembic.ddl.sqlite", "sqlalchemy.dialects.sqlite"),
)
MOST_BYTES = 1 << 17
_STATUS = struct.Struct("i")
_AT_START = ("LANG", "LC_", "LD_", "MALLOC_", "PYTHON")
"""What the variables are called that count when an interpreter starts."""


def forkable(environment: Mapping[str, str]) -> bool:
    """Whether a process with ``environment`` is the same if it is forked."""
    return not [name for name in environment if name.startswith(_AT_START) and name != "LANG"]


class Child:
    """A process that :class:`Spawner` has started: what :class:`subprocess.Popen` is of other processes."""

    def __init__(self, pid: int, told: int, stdout: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = os.fdopen(stdout, "rb", buffering=0)
        self._told: int | None = told

    def poll(self) -> int | None:
        """Return how it has ended, as :attr:`returncode` says it then, or None while it runs."""
        self._look(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return how it has ended.

        :raises subprocess.TimeoutExpired: it runs longer than ``timeout`` seconds.
        """
        self._look(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("connmgr", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> None:
        if self._told is None or not select.select([self._told], [], [], timeout)[0]:
            return
        self.returncode = os.waitstatus_to_exitcode(_STATUS.unpack(os.read(self._told, _STATUS.size))[0])
        os.close(self._told)
        self._told = None


class Spawner:
    """The process that has the program loaded; it ends with the process that has made it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-m", "tests.spawner", str(theirs.fileno())]
            environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
            self._process = subprocess.Popen(argv, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, stderr: int) -> Child:
        """Start the program with ``arguments``, without input, its output in :attr:`Child.stdout`."""
        told, tells = os.pipe()
        reads, stdout = os.pipe()
        words = json.dumps([list(arguments), dict(environment), str(cwd)]).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [words], [stdout, stderr, tells])
                pid = int(self._socket.recv(32))
        finally:
            os.close(tells)
            os.close(stdout)
        return Child(pid, told, reads)

    def close(self) -> None:
        """End it; what it has started goes on."""
        self._socket.close()
        self._process.wait(60)


def main() -> None:
    """Fork whenever it is asked for, until the other side has gone; in a child return, ready to run the program."""
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    # Who waits for a daemon tells its end by itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        while True:
            words, descriptors, *_ = socket.recv_fds(asked, MOST_BYTES, 3)
            if not words:
                os._exit(0)
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _keep(asked, descriptors[2])
                break
            for descriptor in descriptors:
                os.close(descriptor)
    _become(*json.loads(words), *descriptors)


def _keep(asked: socket.socket, tells: int) -> None:
    """Fork once more; the parent stays, waits for the child and tells how it has ended."""
    pid = os.fork()
    if pid == 0:
        return
    asked.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    os.write(tells, _STATUS.pack(status))
    os._exit(0)


def _become(arguments: list[str], environment: dict[str, str], cwd: str, stdout: int, stderr: int, tells: int) -> None:
    """Make this process what a new one is before it runs the program."""
    os.close(tells)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv[1:] = arguments


if __name__ == "__main__":
    main()
    from connmgr.__main__ import main as run

    run()
