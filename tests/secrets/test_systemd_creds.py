"""The vault's key in a file that systemd-creds encrypts with a key of the machine; another machine cannot open it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.errors import StartupError
from connmgr.secrets import vault_key
from connmgr.secrets.vault_key import EncryptedKeyFile, VaultKey
from tests.cli.program import PROGRAM
from tests.conftest import StartDaemon

pytestmark = pytest.mark.needs("linux", "machine", "systemd-creds")

BOUND = 'mount --bind "$0" /var/lib/systemd && exec "$@"'


@pytest.fixture
def machine() -> Iterator[Path]:
    """The directory of a machine's keys; not in memory, because systemd-creds keeps no key there."""
    directory = Path(tempfile.mkdtemp(prefix="connmgr-machine-", dir="/var/tmp"))
    yield directory
    shutil.rmtree(directory)


def on(machine: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program on a machine with these keys."""
    namespace = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", BOUND, str(machine)]
    return subprocess.run([*namespace, PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False)


def test_a_key_moves_there_is_rotated_and_moves_back(start_daemon: StartDaemon, machine: Path, tmp_path: Path) -> None:
    daemon = start_daemon()
    data = {"type": "ssh", "host": "127.0.0.1", "port": 9, "user": "u", "password": "hunter2"}
    connection = daemon.client.connection.add("web1", data)
    daemon.stop()
    directory = Path(daemon.data_dir)
    raw, where = (directory / "vault.key").read_bytes(), ["--data-dir", str(directory)]
    there = [*where, "--key-store", "systemd-creds"]
    moved = on(machine, "vault", "move-key", "systemd-creds", *where)
    assert (moved.returncode, moved.stderr) == (0, "")
    assert 'key-store = "systemd-creds"' in moved.stdout
    encrypted = directory / "vault.key.cred"
    assert (encrypted.stat().st_mode & 0o777, (directory / "vault.key").exists()) == (0o600, False)
    assert raw not in encrypted.read_bytes()
    assert on(machine, "vault", "rotate-key", *there).returncode == 0
    # Another machine, or the same one with another key.
    other = tmp_path.joinpath("other")
    other.mkdir()
    refused = on(other, "vault", "rotate-key", *there)
    assert refused.returncode != 0
    assert "systemd-creds cannot decrypt the vault's key" in refused.stderr
    again = on(machine, "vault", "move-key", "systemd-creds", *there)
    assert again.returncode == 2
    back = on(machine, "vault", "move-key", "file", *there)
    assert (back.returncode, back.stderr, encrypted.exists()) == (0, "", False)
    assert (directory / "vault.key").read_bytes() != raw
    daemon = start_daemon(home=daemon.home)
    stored = daemon.client.connection.info([connection])[0].data["password"]
    assert daemon.client.post("/secret/decrypt", encrypted=stored)["decrypted"] == "hunter2"


def test_a_daemon_starts_with_it(start_daemon: StartDaemon, machine: Path) -> None:
    home = start_daemon()
    home.stop()
    where = ["--data-dir", str(home.data_dir)]
    assert on(machine, "vault", "move-key", "systemd-creds", *where).returncode == 0
    found = on(machine, "doctor", *where, "--key-store", "systemd-creds")
    assert "is the vault's" in found.stdout, found.stdout
    elsewhere = on(machine, "vault", "move-key", "systemd-creds", *where)
    assert "missing" in elsewhere.stderr


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo 'No TPM2 device' >&2; exit 1", r"cannot encrypt the vault's key: No TPM2 device\."),
        ("exec sleep 60", "cannot be used: it does not answer"),
        (None, "cannot be used: No such file"),
    ],
)
def test_a_machine_that_cannot_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, reason: str
) -> None:
    monkeypatch.setattr(vault_key, "CREDS_SECONDS", 0.3)
    if program is not None:
        (tmp_path / "systemd-creds").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "systemd-creds").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + (":/bin" if program else ""))
    with pytest.raises(StartupError, match=reason):
        EncryptedKeyFile(tmp_path / "vault.key.cred").write_next(VaultKey.generate())
    assert not list(tmp_path.glob("vault*"))
