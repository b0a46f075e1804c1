"""Numbered connections of a daemon to this machine, on which runs are tried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import LOCAL_MACHINE, Client
from connmgr.contract.run import RunInfo, RunTarget
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually

HOSTS = 12
ENDED = ("done", "failed", "stopped")


class Hosts:
    """Connections ``host0`` to ``host11``; the number is ``N`` in their shells, and ``far`` a directory of theirs."""

    def __init__(self, daemon: Daemon, far: Path, count: int = HOSTS) -> None:
        self.daemon, self.far = daemon, far
        far.mkdir(exist_ok=True)
        self.ids = [self._added(number) for number in range(count)]
        # A port at which nothing listens: the machine answers that at once.
        nowhere = {"type": "ssh", "host": "127.0.0.1", "port": 1, "user": "nobody"}
        self.away = self.client.connection.add("away", nowhere)

    @property
    def client(self) -> Client:
        return self.daemon.client

    def _added(self, number: int) -> str:
        data = {"type": "shellEnvironment", "host": LOCAL_MACHINE, "commands": [f"export N={number}"]}
        return self.client.connection.add(f"host{number}", data)

    @contextmanager
    def with_token(self, **limits: Any) -> Iterator[Client]:
        """Yield a client with a new token that may run any command, within ``limits``."""
        created = self.client.token.create("theirs", 600, ["connection.read", "shell.any"], **limits)
        with Client(self.daemon.url, session_token=created["token"]) as theirs:
            yield theirs

    def start(self, command: str | None, count: int = HOSTS, **fields: Any) -> str:
        """Start a run on the first ``count`` hosts, and return it."""
        begun = self.client.runs.start(**{"connections": self.ids[:count], "command": command, **fields})
        assert begun.run is not None
        return begun.run

    def ended(self, run: str) -> RunInfo:
        """Wait for a run's end, and return the run."""
        info = self.client.runs.wait(run, DEADLINE_SECONDS)
        assert info.state in ENDED, info
        return info

    def run(self, command: str | None, count: int = HOSTS, **fields: Any) -> RunInfo:
        """Run a command to the end of its run."""
        return self.ended(self.start(command, count, **fields))

    def until(self, run: str, state: str) -> RunInfo:
        """Wait until a run is in ``state``."""
        return eventually(
            lambda: self.client.runs.info(run), f"the run is never {state}", holds=lambda info: info.state == state
        )

    def targets(self, run: str, *states: str) -> list[RunTarget]:
        return list(self.client.runs.targets(run, states or None))

    def begun(self, name: str) -> list[str]:
        """Return the numbers of the hosts that have written their own into the file ``name``, in that order."""
        path = self.far / name
        return path.read_text().split() if path.exists() else []

    def noting(self, name: str) -> str:
        """Return a command by which each host notes that it has begun."""
        return f"echo $N >> {self.far / name}"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    daemon = Daemon(tmp_path_factory.mktemp("runs"))
    yield Hosts(daemon, tmp_path_factory.mktemp("far"))
    daemon.stop()
