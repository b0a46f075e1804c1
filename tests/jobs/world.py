"""Everything between a job and its client, and the ways to break each part."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from connmgr.client import Client, ClientError
from tests.components import missing, program
from tests.daemon import Daemon
from tests.plugins.machine import Machine
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.relay import Relay
from tests.plugins.sshd import Sshd, privilege_separation
from tests.ports import ReservedPort

LOCAL, SSH, SUDO = "local", "ssh", "sudo in ssh"
DIALECTS = {
    "bash": "bash",
    "dash": "dash",
    "ash": "busybox ash",
    "zsh": "zsh",
    "mksh": "mksh",
    "ksh93": "ksh93",
    "fish": "fish",
}
"""The shells that run jobs, as connections name them."""


def dialects() -> list[str]:
    """Return the names of the shells that are installed."""
    return [name for name, words in DIALECTS.items() if program(words.split()[0])]


class World:
    """A daemon that can be killed, and an sshd behind a relay, whose user may run everything by sudo if available."""

    def __init__(self, home: Path, server: Sshd, user: str, machine: Machine | None = None) -> None:
        self.places = [LOCAL, SSH, *([SUDO] if machine else [])]
        self.machine = machine
        self._home = home
        self._server = server
        self._user = user
        self._relay = Relay(server.port)
        self._reserved = ReservedPort()
        self._port = str(self._reserved.number)
        self._daemon = Daemon(home, "--port", self._port)
        self._connections: dict[tuple[str, str], str] = {}
        self.faults: dict[str, Callable[[], None]] = {
            "link": self._relay.reset,
            "session": server.drop_sessions,
            "server": self._restart_server,
            "daemon": self._restart_daemon,
            "shell": self._stop_shells,
            "everything": self._break_all,
        }

    def close(self) -> None:
        self._relay.close()
        self._daemon.stop()
        self._reserved.close()

    def client(self, timeout: float = 60.0) -> Client:
        """Return a client of the running daemon; it waits ``timeout`` seconds for an answer."""
        return Client(self._daemon.url, auth_file=self._daemon.auth_file, timeout=timeout)

    def connection(self, place: str, dialect: str) -> str:
        """Return the connection to ``place`` with the shell ``dialect``."""
        found = self._connections.get((place, dialect))
        if found is None:
            found = self._connections[place, dialect] = self._added(place, dialect)
        return found

    @property
    def url(self) -> str:
        """The daemon's URL."""
        return self._daemon.url

    @property
    def auth_file(self) -> Path:
        """The auth file of the daemon."""
        return self._daemon.auth_file

    @property
    def pid(self) -> int:
        """The daemon's process."""
        return self._daemon.pid

    @property
    def data_dir(self) -> Path:
        """The daemon's data directory."""
        return self._daemon.data_dir

    def faults_at(self, place: str) -> list[str]:
        """Return the names of the faults between the daemon and ``place``."""
        return [name for name in self.faults if place != LOCAL or name not in ("link", "session", "server")]

    def log(self) -> str:
        """Return what the daemons have written to stderr."""
        return self._daemon.stderr()

    def _added(self, place: str, dialect: str) -> str:
        data: dict[str, Any] = {"shell": DIALECTS[dialect]}
        if place == LOCAL:
            data |= {"type": "local"}
        elif place == SSH:
            data |= {"type": "ssh", **ssh_fields(self._server, self._user, port=self._relay.port, keepAlive=1)}
        else:
            data |= {"type": "shellEnvironment", "host": self.connection(SSH, dialect), "elevated": True}
        with self.client() as client:
            added = client.post("/connection/add", name=f"{place} {dialect}", data=data, validate=False)
        return str(added["connection"])

    def _restart_server(self) -> None:
        self._server.crash()
        self._server.start()

    def _restart_daemon(self) -> None:
        self._daemon.kill()
        self._daemon = Daemon(self._home, "--port", self._port)

    def _stop_shells(self) -> None:
        with self.client() as client:
            for connection in list(self._connections.values()):
                with suppress(ClientError):
                    client.post("/shell/stop", connection=connection)

    def _break_all(self) -> None:
        self._stop_shells()
        self._relay.reset()
        self._restart_server()
        self._restart_daemon()


@contextmanager
def world() -> Iterator[World]:
    """Run a world: on a test machine with sudo if possible, else as this user."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True)))
        (home / "daemon").mkdir()
        machine = None
        if missing(("machine", "sudo")) is None:
            stack.enter_context(privilege_separation())
            machine = stack.enter_context(closing(Machine()))
            inhabitant = machine.add_user()
            machine.allow(f"{inhabitant.name} ALL=(ALL) NOPASSWD: ALL")
            user = inhabitant.name
            server = stack.enter_context(closing(Sshd({"SetEnv": "LANG=C.UTF-8"}, inside=machine.inside())))
        else:
            (home / "user").mkdir()
            server = stack.enter_context(ssh_server(home / "user"))
            user = server.user
        yield stack.enter_context(closing(World(home / "daemon", server, user, machine)))


def new_mark() -> str:
    """Return a word that no other process has in its argv."""
    return f"survival-{uuid.uuid4().hex}"


def marked(*marks: str) -> list[psutil.Process]:
    """Return the processes that have one of ``marks`` in an argument or in their environment, this one excepted."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, psutil.NoSuchProcess):
            text = (directory / "cmdline").read_bytes() + b"\0" + (directory / "environ").read_bytes()
            if any(mark.encode() in text for mark in marks):
                found.append(psutil.Process(int(directory.name)))
    return found
