"""The vault's key in a file that systemd-creds encrypts with a key of the machine; another machine cannot open it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.errors import StartupError
from connmgr.secrets import vault_key
from connmgr.secrets.vault_key import EncryptedKeyFile, KeyFile, VaultKey, load_from
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


FAKE = """#!/bin/sh
case $2 in
    encrypt) printf 'sealed '; exec base64 -w0 ;;
    decrypt) read -r word content; [ "$word" = sealed ] || { echo 'Not sealed.' >&2; exit 1; }
        printf %s "$content" | exec base64 -d ;;
esac
"""
"""Stands for systemd-creds where only the order of steps matters."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EncryptedKeyFile:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "systemd-creds").write_text(FAKE)
    (programs / "systemd-creds").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    return EncryptedKeyFile(directory / "vault.key.cred")


@pytest.mark.parametrize(("committed", "kept"), [(False, "old"), (True, "new")])
def test_an_interrupted_rotation_is_finished(store: EncryptedKeyFile, committed: bool, kept: str) -> None:
    keys = {"old": load_from(store, create=True), "new": VaultKey.generate()}
    store.write_next(keys["new"])
    verifier = keys["new" if committed else "old"].verifier()
    assert load_from(store, create=False, verifier=verifier).matches(keys[kept].verifier())
    assert [path.name for path in store.path.parent.iterdir()] == ["vault.key.cred"]


def test_a_next_key_that_was_cut_off_is_ignored(store: EncryptedKeyFile) -> None:
    key = load_from(store, create=True)
    store.write_next(VaultKey.generate())
    following = store.path.with_name("vault.key.cred.next")
    following.write_bytes(following.read_bytes()[:3])
    assert load_from(store, create=False, verifier=key.verifier()).matches(key.verifier())
    assert not following.exists()
    store.path.write_bytes(b"something else")
    with pytest.raises(StartupError, match=r"cannot decrypt the vault's key: Not sealed\."):
        load_from(store, create=False, verifier=key.verifier())


def test_a_move_leaves_a_key_that_is_there_already(store: EncryptedKeyFile) -> None:
    plain = KeyFile(store.path.with_name("vault.key"))
    key, other = load_from(plain, create=True), load_from(store, create=True)
    with pytest.raises(StartupError, match="another vault's key is in that place"):
        vault_key.move(plain, store, key.verifier())
    with pytest.raises(StartupError, match="not the one that this vault was made with"):
        vault_key.move(store, plain, key.verifier())
    for one, kept in ((plain, key), (store, other)):
        found = one.read()
        assert found is not None
        assert found.matches(kept.verifier())
    store.remove()
    vault_key.move(plain, store, key.verifier())
    # As an interruption leaves it, in both stores.
    plain.write_next(key)
    plain.promote()
    vault_key.move(plain, store, key.verifier())
    assert plain.read() is None
    moved = store.read()
    assert moved is not None
    assert moved.matches(key.verifier())
