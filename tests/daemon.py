"""A real daemon for the tests: a process ``connmgr serve`` with its own directories and environment."""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.spawner import SERVER, Child, Spawner, forkable

if TYPE_CHECKING:
    from connmgr.client import Client

PROGRAM = (sys.executable, "-m", "connmgr")
READY = "connmgr listening on "
START_SECONDS = 60.0
STOP_SECONDS = 40.0


class DaemonExitedError(Exception):
    """The daemon ended, or printed no ready line in time; see ``returncode`` and ``stderr``."""

    def __init__(self, what: str, returncode: int | None, stderr: str) -> None:
        super().__init__(f"{what} (exit code {returncode}); stderr:\n{stderr}")
        self.returncode = returncode
        self.stderr = stderr


def clean_environment(home: Path) -> dict[str, str]:
    """Return an environment with the caller's PATH and nothing else of it; all its directories are under ``home``.

    The directories are made. A daemon or command started with it neither sees nor touches the user's own files.
    """
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(home)}
    for variable, name in {
        "XDG_DATA_HOME": "data",
        "XDG_CONFIG_HOME": "config",
        "XDG_STATE_HOME": "state",
        "XDG_CACHE_HOME": "cache",
        "XDG_RUNTIME_DIR": "run",
        "TMPDIR": "tmp",
    }.items():
        directory = home / name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment[variable] = str(directory)
    return environment


class Daemon:
    """A running ``connmgr serve --port 0``, whose directories are all in ``home``.

    Making one waits for the ready line. ``options`` are further flags; ``environment`` adds to
    :func:`clean_environment`; ``program`` is the command that has ``serve``, without which the daemon is forked from
    a process that has the program loaded.
    :raises DaemonExitedError: it refused to start or was not ready in time; nothing is left running.
    """

    def __init__(
        self,
        home: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
    ) -> None:
        self.home = home
        self.environment = clean_environment(home) | dict(environment or {})
        self.data_dir = home / "data" / "connmgr"
        self.auth_file = home / "run" / "connmgr" / "auth"
        self._stderr_path = home / "stderr.log"
        self.process = self._started(["serve", "--port", "0", *options], program)
        self.pid = self.process.pid
        assert self.process.stdout is not None
        try:
            self.url = _ready_line(self.process.stdout).removeprefix(READY)
        except BaseException as error:
            self.kill()
            raise DaemonExitedError(f"no ready line: {error}", self.process.returncode, self.stderr()) from error

    def _started(self, arguments: list[str], program: Sequence[str]) -> subprocess.Popen[bytes] | Child:
        with self._stderr_path.open("ab") as stderr:
            if not program and forkable(self.environment):
                with Path(os.devnull).open("rb") as stdin:
                    streams = stdin.fileno(), stderr.fileno()
                    return spawner(*SERVER).start(arguments, self.environment, self.home, *streams)
            return subprocess.Popen(
                [*(program or PROGRAM), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self.environment,
                cwd=self.home,
            )

    @cached_property
    def client(self) -> Client:
        """A client of this daemon, authenticated by its auth file."""
        from connmgr.client import Client

        return Client(self.url, auth_file=self.auth_file)

    def leave_client(self) -> None:
        """Close :attr:`client`, so that the next one has a new session."""
        if "client" in vars(self):
            self.client.close()
            del self.client

    def stderr(self, start: int = 0) -> str:
        """Return what the daemon has written to stderr, from byte ``start`` on."""
        return self._stderr_path.read_bytes()[start:].decode(errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Stop the daemon with SIGTERM and wait for it.

        :raises DaemonExitedError: it took too long, or did not exit with 0.
        """
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DaemonExitedError("the daemon did not stop in time", None, self.stderr()) from None
        self.close()
        if self.process.returncode != 0:
            raise DaemonExitedError("the daemon did not stop cleanly", self.process.returncode, self.stderr())

    def kill(self) -> None:
        """Kill the daemon at once, as a crash would."""
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Release this side's ends of the connection and the pipe; calling it again does nothing."""
        if "client" in vars(self):
            self.client.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


@cache
def spawner(*modules: str, main: str = "connmgr.__main__") -> Spawner:
    """Return this process's one spawner that has ``modules`` loaded: a fork costs by the memory that is copied.

    ``main`` is as for :class:`tests.spawner.Spawner`.
    """
    made = Spawner(modules, main)
    atexit.register(made.close)
    return made


def _ready_line(stdout: IO[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while not received.endswith(b"\n"):
            if not selector.select(deadline - time.monotonic()):
                raise TimeoutError(f"nothing within {START_SECONDS:g} s, stdout so far: {received!r}")
            chunk = os.read(stdout.fileno(), 4096)
            if not chunk:
                raise EOFError(f"stdout ended with {received!r}")
            received += chunk
    line = received.decode().rstrip("\n")
    if not line.startswith(READY):
        raise ValueError(f"the first line is {line!r}")
    return line
