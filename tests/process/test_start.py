"""Starting: the ready line, the files created, and refusals in one line that change nothing."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from connmgr.client import Client, ClientError
from tests.cli.program import run
from tests.conftest import StartDaemon
from tests.daemon import Daemon, DaemonExitedError, clean_environment
from tests.deadlines import eventually


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def refusal(home: Path, *options: str, environment: dict[str, str] | None = None) -> str:
    """Return the one line with which ``connmgr serve`` refuses to start."""
    words = ("serve", *(options or ("--port", "0")))
    done = run(*words, environment=clean_environment(home) | (environment or {}))
    assert (done.code, done.output) == (1, "")
    lines = done.errors.splitlines()
    assert len(lines) == 1, done.errors
    assert "Traceback" not in done.errors
    return lines[0]


def test_every_file_is_private(own_daemon: Daemon) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", own_daemon.url)
    assert mode(own_daemon.data_dir) == 0o700
    assert {path.name for path in own_daemon.data_dir.iterdir()} >= {"vault.db", "vault.key", "lock"}
    for path in own_daemon.data_dir.iterdir():
        assert (path.name, oct(mode(path))) == (path.name, "0o700" if path.is_dir() else "0o600")
    assert mode(own_daemon.auth_file) == 0o600
    assert mode(own_daemon.auth_file.parent) == 0o700


def test_listening_on_loopback_gives_no_warning(own_daemon: Daemon) -> None:
    assert "WARNING" not in own_daemon.stderr()


def test_listening_elsewhere_gives_a_warning(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--host", "0.0.0.0")
    assert "WARNING" in daemon.stderr()
    assert "network" in daemon.stderr()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} of 127.0.0.1 is taken" in refusal(tmp_path, "--port", str(port))
    assert not (tmp_path / "data/connmgr/vault.db").exists()


def test_another_daemon_on_the_same_vault(own_daemon: Daemon) -> None:
    line = refusal(own_daemon.home)
    assert f"Another connmgr daemon (pid {own_daemon.pid}) uses this vault and listens on {own_daemon.url}." in line
    assert own_daemon.auth_file.exists()


def test_a_data_directory_that_is_open_to_others(own_daemon: Daemon) -> None:
    own_daemon.stop()
    own_daemon.data_dir.chmod(0o755)
    assert f"chmod 700 {own_daemon.data_dir}" in refusal(own_daemon.home)


def test_an_empty_data_directory_is_made_private(start_daemon: StartDaemon, tmp_path: Path) -> None:
    directory = tmp_path / "vault"
    directory.mkdir(mode=0o755)
    start_daemon("--data-dir", str(directory))
    assert mode(directory) == 0o700


def test_a_file_in_place_of_the_data_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    assert "is not a directory" in refusal(tmp_path, "--data-dir", str(path))
    assert path.read_text() == "x"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: (data / "vault.key").chmod(0o644), "open to others"),
        (lambda data: (data / "vault.key").unlink(), "key"),
        (lambda data: (data / "vault.key").write_bytes(b"x" * 31), "damaged"),
        (lambda data: (data / "vault.key").write_bytes(b"x" * 32), "key"),
        (lambda data: (data / "vault.db").write_bytes(b"not a database" * 1000), "vault.db"),
    ],
    ids=["open", "missing", "short", "wrong", "database"],
)
def test_a_key_or_database_in_a_bad_state_is_left_untouched(own_daemon: Daemon, spoil: object, says: str) -> None:
    own_daemon.stop()
    assert callable(spoil)
    spoil(own_daemon.data_dir)
    before = contents(own_daemon.data_dir)
    assert says in refusal(own_daemon.home)
    after = contents(own_daemon.data_dir)
    for name in ("vault.key", "vault.db"):
        assert after.get(name) == before.get(name)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--port", "x"), "option --port: 'x'"),
        (("--port", "70000"), "at most 65535"),
        (("--threads", "0"), "at least 1"),
        (("--log-level", "loud"), "one of debug, info"),
        (("--session-ttl", "nan"), "--session-ttl"),
        (("--host", "name.invalid", "--port", "0"), "cannot be resolved"),
        (("--database-url", "mysql://user:hunter2@x/y"), ""),
        (("--config", "/nowhere/config.toml"), "does not exist"),
    ],
)
def test_a_bad_option(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    line = refusal(tmp_path, *options)
    assert says in line
    assert "hunter2" not in line


def test_a_bad_setting_of_the_environment_or_the_file_is_named(tmp_path: Path) -> None:
    line = refusal(tmp_path, environment={"CONNMGR_PORT": "-1"})
    assert "environment variable CONNMGR_PORT" in line
    config = tmp_path / "config.toml"
    config.write_text("prot = 1\n")
    assert "unknown or repeated key: prot" in refusal(tmp_path, "--config", str(config))


@pytest.mark.parametrize("dangling", [False, True])
def test_a_file_or_a_broken_link_in_place_of_the_spool(tmp_path: Path, dangling: bool) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    if dangling:
        (data / "spool").symlink_to("nowhere")
    else:
        (data / "spool").touch()
    line = refusal(tmp_path, "--port", "0", "--data-dir", str(data))
    assert f"Blobs cannot be stored in {data / 'spool'}: it is not a directory" in line


def test_the_daemon_survives_a_closed_stdout(tmp_path: Path, port: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "connmgr", "serve", "--port", port],
        env=clean_environment(tmp_path),
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    try:
        with Client(f"http://127.0.0.1:{port}", auth_file=tmp_path / "run/connmgr/auth") as client:

            def stopped() -> bool:
                assert process.poll() is None
                return _stopped_by(client)

            eventually(stopped, "the daemon cannot be stopped")
    finally:
        _, stderr = process.communicate(timeout=30)
    assert (process.returncode, b"Traceback" in stderr) == (0, False)


def _stopped_by(client: Client) -> bool:
    try:
        client.post("/daemon/stop")
    except ClientError:
        return False
    return True


def test_a_refused_start_exits_with_1(tmp_path: Path) -> None:
    with pytest.raises(DaemonExitedError) as caught:
        Daemon(tmp_path / "home", "--port", "x")
    assert caught.value.returncode == 1
