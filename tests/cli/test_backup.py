"""Backup beside a running daemon, and restore into an empty directory: with the key, secrets can be opened again."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from tests.cli.program import run
from tests.conftest import StartDaemon
from tests.daemon import DaemonExitedError


def test_a_backup_is_restored_with_its_secrets(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    encrypted = daemon.client.post("/secret/encrypt", value="hunter2")["encrypted"]
    data = {"type": "ssh", "host": "server.example", "user": "me", "password": "hunter2"}
    added = daemon.client.post("/connection/add", name="server", data=data, validate=False)["connection"]
    file = tmp_path / "vault.backup"

    done = run("vault", "backup", str(file), environment=daemon.environment)
    assert done.code == 0, done.errors
    assert "key is not part of it" in done.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"hunter2" not in file.read_bytes()
    again = run("vault", "backup", str(file), environment=daemon.environment)
    assert again.code == 1
    assert "Traceback" not in again.errors

    home = tmp_path / "elsewhere"
    directory = home / "data" / "connmgr"
    restored = run("vault", "restore", str(file), "--data-dir", str(directory), environment=daemon.environment)
    assert restored.code == 0, restored.errors
    with pytest.raises(DaemonExitedError, match=r"vault\.key|key"):
        start_daemon(home=home)
    shutil.copy2(daemon.data_dir / "vault.key", directory / "vault.key")
    second = start_daemon(home=home)
    assert second.client.post("/connection/info", connections=[added])["infos"][0]["name"] == ["server"]
    assert second.client.post("/secret/decrypt", encrypted=encrypted)["decrypted"] == "hunter2"


def test_a_backup_is_not_restored_over_a_vault(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    file = tmp_path / "vault.backup"
    assert run("vault", "backup", str(file), environment=daemon.environment).code == 0
    refused = run("vault", "restore", str(file), environment=daemon.environment)
    assert refused.code == 1
    assert "not empty" in refused.errors
    assert daemon.client.post("/category/query", filter="*")["found"]
