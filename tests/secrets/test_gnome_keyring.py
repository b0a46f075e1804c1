"""GNOME's keyring on a D-Bus of its own keeps the vault's key, and secrets that the vault does not keep."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from connmgr.client import ClientError
from tests.conftest import StartDaemon
from tests.daemon import Daemon, DaemonExitedError
from tests.deadlines import eventually
from tests.plugins.sshd import Sshd, privilege_separation

pytestmark = pytest.mark.needs("linux", "gnome-keyring", "dbus")

Result = TypeVar("Result")
MOST_CRASHES = 9
CRASH_SECONDS = 1.0
"""How long a keyring whose client has failed may take to crash."""


class Desktop:
    """A desktop's session: a D-Bus of its own with GNOME's keyring, unlocked, until :meth:`stop`."""

    def __init__(self, home: Path) -> None:
        for directory in (home, home / "run"):
            directory.mkdir(mode=0o700)
        self._address = f"unix:path={home / 'run' / 'bus'}"
        self._socket = home / "run" / "bus"
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "XDG_DATA_HOME": str(home / "data"),
            "DBUS_SESSION_BUS_ADDRESS": self._address,
        }
        self.of_daemon = {"DBUS_SESSION_BUS_ADDRESS": self._address}
        """What a daemon in the session needs; it has a home of its own."""
        self._running: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start the session; what the keyring kept in an earlier one is still there."""
        self._socket.unlink(missing_ok=True)
        self._run("dbus-daemon", "--session", "--nofork", f"--address={self._address}")
        eventually(self._socket.exists, "the bus does not start")
        self._keyring = self._run("gnome-keyring-daemon", "--foreground", "--unlock", "--components=secrets")
        assert self._keyring.stdin is not None
        self._keyring.stdin.write(b"the desktop's password")
        self._keyring.stdin.close()
        owned = ["dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.DBus", "/org/freedesktop/DBus"]
        owned += ["org.freedesktop.DBus.NameHasOwner", "string:org.freedesktop.secrets"]

        def is_there() -> bool:
            asked = subprocess.run(owned, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
            return "true" in asked.stdout

        eventually(is_there, "the keyring does not start")

    def _run(self, *argv: str) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        running = subprocess.Popen(argv, env=self.environment, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        self._running.append(running)
        return running

    def stop(self) -> None:
        """End the keyring and the bus."""
        while self._running:
            with self._running.pop() as process:
                process.kill()

    def attempt(self, work: Callable[[], Result]) -> Result:
        """Return the result of ``work``; where the keyring crashed meanwhile, start the session anew and try again.

        gnome-keyring-daemon notes a new client in one thread and answers it in another. Where the answer comes first,
        as may happen on a busy machine, an assertion of its own aborts it, and the bus starts another one, locked.
        """
        for _ in range(MOST_CRASHES):
            try:
                return work()
            except (AssertionError, ClientError, DaemonExitedError):
                try:
                    # The client may have heard of its end before its parent does.
                    crashed = self._keyring.wait(CRASH_SECONDS) == -signal.SIGABRT
                except subprocess.TimeoutExpired:
                    crashed = False
                if not crashed:
                    raise
            self.stop()
            self.start()
        return work()


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Desktop]:
    """A desktop's session."""
    session = Desktop(tmp_path / "desktop")
    yield session
    session.stop()


def keyring(environment: dict[str, str], *words: str, secret: str = "") -> str:
    """Call the command line of the package keyring, as a user would."""
    argv = [sys.executable, "-I", "-m", "keyring", *words]
    done = subprocess.run(argv, input=secret, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_keeps_the_vault_s_key(desktop: Desktop, start_daemon: StartDaemon) -> None:
    def started(home: Path | None = None) -> Daemon:
        return start_daemon("--key-store", "keyring", home=home, environment=desktop.of_daemon)

    daemon = desktop.attempt(started)
    data = {"type": "ssh", "host": "127.0.0.1", "port": 9, "user": "u", "password": "hunter2"}
    connection = daemon.client.connection.add("web1", data)
    daemon.stop()
    directory = Path(daemon.data_dir)
    assert not list(directory.glob("vault.key*"))
    kept = desktop.attempt(lambda: keyring(desktop.environment, "get", "connmgr", str(directory)))
    assert len(base64.b64decode(kept)) == 32
    again = desktop.attempt(lambda: started(daemon.home))
    stored = again.client.connection.info([connection])[0].data["password"]
    assert again.client.post("/secret/decrypt", encrypted=stored)["decrypted"] == "hunter2"


@pytest.mark.needs("sshd")
def test_a_login_fetches_from_it(desktop: Desktop, start_daemon: StartDaemon) -> None:
    client = start_daemon(environment=desktop.of_daemon).client
    with privilege_separation():
        server = Sshd()
        try:
            secret = server.client_key.read_text()
            desktop.attempt(lambda: keyring(desktop.environment, "set", "web1", "deploy", secret=secret))
            reference = {"from": {"source": "keyring", "service": "web1", "username": "deploy"}}
            data = {"type": "ssh", "host": "127.0.0.1", "port": server.port, "user": server.user}
            data |= {"hostKeyChecking": "acceptNew"}
            first = client.connection.add("web1", {**data, "identity": {"key": reference}})
            desktop.attempt(lambda: client.shell.start(first))
            reference["from"]["username"] = "nobody"
            other = client.connection.add("web2", {**data, "keepAlive": 5, "identity": {"key": reference}})
            with pytest.raises(ClientError) as failed:
                client.shell.start(other)
            assert failed.value.code == "secret_unavailable"
        finally:
            server.close()
