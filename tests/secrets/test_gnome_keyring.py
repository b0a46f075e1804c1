"""GNOME's keyring on a D-Bus of its own keeps the vault's key, and secrets that the vault does not keep."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import ClientError
from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.sshd import Sshd, privilege_separation

pytestmark = pytest.mark.needs("linux", "gnome-keyring", "dbus")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a desktop's session whose keyring is unlocked."""
    home = tmp_path / "desktop"
    for directory in (home, home / "run"):
        directory.mkdir(mode=0o700)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "XDG_DATA_HOME": str(home / "data"),
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={home / 'run' / 'bus'}",
    }
    bus = subprocess.Popen(
        ["dbus-daemon", "--session", "--nofork", f"--address={environment['DBUS_SESSION_BUS_ADDRESS']}"],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    eventually(lambda: (home / "run" / "bus").exists(), "the bus does not start")
    keyring = subprocess.Popen(
        ["gnome-keyring-daemon", "--foreground", "--unlock", "--components=secrets"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert keyring.stdin is not None
        keyring.stdin.write(b"the desktop's password")
        keyring.stdin.close()
        owned = ["dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.DBus", "/org/freedesktop/DBus"]
        owned += ["org.freedesktop.DBus.NameHasOwner", "string:org.freedesktop.secrets"]

        def is_there() -> bool:
            asked = subprocess.run(owned, env=environment, capture_output=True, text=True, timeout=60, check=False)
            return "true" in asked.stdout

        eventually(is_there, "the keyring does not start")
        yield environment
    finally:
        for process in (keyring, bus):
            process.kill()
            process.wait(DEADLINE_SECONDS)


def bus_of(session: dict[str, str]) -> dict[str, str]:
    """Return what a daemon in the session needs; it has a home of its own."""
    return {"DBUS_SESSION_BUS_ADDRESS": session["DBUS_SESSION_BUS_ADDRESS"]}


def keyring(environment: dict[str, str], *words: str, secret: str = "") -> str:
    """Call the command line of the package keyring, as a user would."""
    argv = [sys.executable, "-I", "-m", "keyring", *words]
    done = subprocess.run(argv, input=secret, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_keeps_the_vault_s_key(session: dict[str, str], start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--key-store", "keyring", environment=bus_of(session))
    data = {"type": "ssh", "host": "127.0.0.1", "port": 9, "user": "u", "password": "hunter2"}
    connection = daemon.client.connection.add("web1", data)
    daemon.stop()
    directory = Path(daemon.data_dir)
    assert not list(directory.glob("vault.key*"))
    assert len(base64.b64decode(keyring(session, "get", "connmgr", str(directory)))) == 32
    again = start_daemon("--key-store", "keyring", home=daemon.home, environment=bus_of(session))
    stored = again.client.connection.info([connection])[0].data["password"]
    assert again.client.post("/secret/decrypt", encrypted=stored)["decrypted"] == "hunter2"


@pytest.mark.needs("sshd")
def test_a_login_fetches_from_it(session: dict[str, str], start_daemon: StartDaemon) -> None:
    daemon = start_daemon(environment=bus_of(session))
    with privilege_separation():
        server = Sshd()
        try:
            keyring(session, "set", "web1", "deploy", secret=server.client_key.read_text())
            reference = {"from": {"source": "keyring", "service": "web1", "username": "deploy"}}
            data = {"type": "ssh", "host": "127.0.0.1", "port": server.port, "user": server.user}
            data |= {"hostKeyChecking": "acceptNew"}
            daemon.client.shell.start(daemon.client.connection.add("web1", {**data, "identity": {"key": reference}}))
            reference["from"]["username"] = "nobody"
            other = daemon.client.connection.add("web2", {**data, "keepAlive": 5, "identity": {"key": reference}})
            with pytest.raises(ClientError) as failed:
                daemon.client.shell.start(other)
            assert failed.value.code == "secret_unavailable"
        finally:
            server.close()
