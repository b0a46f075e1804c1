"""``connmgr vault rotate-key``, as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from connmgr.client import Client
from tests.cli.program import Done, run
from tests.conftest import StartDaemon
from tests.daemon import clean_environment


def rotate_key(home: Path) -> Done:
    return run("vault", "rotate-key", environment=clean_environment(home))


def test_a_running_daemon_keeps_its_key(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(home=tmp_path)
    key = (daemon.data_dir / "vault.key").read_bytes()
    result = rotate_key(tmp_path)
    assert result.code == 1
    assert f"Another connmgr daemon (pid {daemon.pid}) uses this vault and listens on {daemon.url}." in result.errors
    assert (daemon.data_dir / "vault.key").read_bytes() == key


def test_without_a_vault_there_is_nothing_to_rotate(tmp_path: Path) -> None:
    result = rotate_key(tmp_path)
    assert (result.code, result.output) == (1, "")
    assert "no vault yet" in result.errors
    assert not (tmp_path / "data" / "connmgr" / "vault.key").exists()


def test_a_stopped_daemon_s_vault_gets_a_new_key_and_keeps_its_secrets(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon(home=tmp_path)
    with Client(daemon.url, auth_file=daemon.auth_file) as client:
        encrypted = client.post("/secret/encrypt", value="hunter2")["encrypted"]
    daemon.stop()
    key = (daemon.data_dir / "vault.key").read_bytes()
    result = rotate_key(tmp_path)
    assert (result.code, result.errors) == (0, "")
    assert (daemon.data_dir / "vault.key").read_bytes() != key
    again = start_daemon(home=tmp_path)
    with Client(again.url, auth_file=again.auth_file) as client:
        assert client.post("/secret/decrypt", encrypted=encrypted) == {"decrypted": "hunter2"}


def test_killed_in_the_middle_the_next_start_finds_the_right_key(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(home=tmp_path)
    with Client(daemon.url, auth_file=daemon.auth_file) as client:
        encrypted = client.post("/secret/encrypt", value="hunter2")["encrypted"]
    daemon.stop()
    following = daemon.data_dir / "vault.key.next"
    process = subprocess.Popen(
        [sys.executable, "-m", "connmgr", "vault", "rotate-key"],
        env=clean_environment(tmp_path),
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not following.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    again = start_daemon(home=tmp_path)
    assert not following.exists()
    with Client(again.url, auth_file=again.auth_file) as client:
        assert client.post("/secret/decrypt", encrypted=encrypted) == {"decrypted": "hunter2"}
