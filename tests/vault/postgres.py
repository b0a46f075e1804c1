"""A PostgreSQL server for the tests: in a temporary directory, on a loopback port, as a user other than root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.components import postgres_programs
from tests.deadlines import eventually
from tests.ports import ReservedPort

DEADLINE = 30.0


class Postgres:
    """A running server with its default durability; :meth:`stop` ends it and removes its files."""

    def __init__(self) -> None:
        programs = postgres_programs()
        assert programs is not None
        self._programs = programs
        self._directory = Path(tempfile.mkdtemp(prefix="connmgr-postgres-"))
        self._identity = _identity()
        if self._identity:
            os.chown(self._directory, self._identity["user"], self._identity["group"])
        self.data = self._directory / "data"
        self._run(
            "initdb", "--no-sync", "--auth=trust", "--username=connmgr", "--encoding=UTF8", "--locale=C", self.data
        )
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._names = count()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._directory,
            "max_connections": 60,
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        log = (self._directory / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*_ends_with_its_parent(), self._programs / "postgres", "-D", self.data, *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                **self._identity,
            )

        def answer() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, (self._directory / "log").read_text()
            psycopg.connect(self.dsn("postgres"), connect_timeout=2).close()
            return True

        eventually(answer, "PostgreSQL does not answer", ignoring=psycopg.OperationalError)

    @property
    def pid(self) -> int:
        """The parent of the server's processes."""
        assert self._process is not None
        return self._process.pid

    def halt(self, how: signal.Signals = signal.SIGINT) -> None:
        """Shut the server down: SIGINT at once but cleanly, SIGQUIT as a crash would."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(DEADLINE)

    def stop(self) -> None:
        """End the server and remove its files."""
        if self._process is not None and self._process.poll() is None:
            self.halt(signal.SIGQUIT)
        self._reserved.close()
        shutil.rmtree(self._directory)

    def create(self, template: str | None = None) -> str:
        """Create a database, empty or as a copy of the unused ``template``, and return its name."""
        name = f"vault{next(self._names)}"
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return name

    def dsn(self, name: str) -> str:
        """Return libpq's URL of a database."""
        return f"postgresql://connmgr@127.0.0.1:{self.port}/{name}"

    def backends(self, name: str) -> list[int]:
        """Return the pids of the processes that serve a database, except the one that answers."""
        with psycopg.connect(self.dsn("postgres")) as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
            return [pid for (pid,) in connection.execute(query, [name])]

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._programs / program, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self._directory, **self._identity)


def _ends_with_its_parent() -> list[str]:
    """Return the argv prefix that ends a program with its parent, if the system has one."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "QUIT"] if setpriv and sys.platform == "linux" else []


def _identity() -> dict[str, Any]:
    """Return the user to run as, since PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise LookupError("neither a user postgres nor nobody")
