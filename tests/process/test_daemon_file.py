"""``daemon.json``, which says where the daemon listens: who finds the daemon by it, and when it is ignored."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connmgr import __version__
from connmgr.client import Client, Unreachable
from connmgr.daemon.files import DaemonFile
from connmgr.paths import daemon_file_of, find_daemon, read_daemon_file, url_of
from connmgr.processes import start_of
from tests.cli.program import CommandLine
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.unsafe_files import fifo, linked, open_to_others


@pytest.fixture
def untold(own_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line of a user whose variables name no port; the variables of this process name none either."""
    connmgr = CommandLine(own_daemon)
    del connmgr.environment["CONNMGR_PORT"]
    for name in ("CONNMGR_HOST", "CONNMGR_PORT", "CONNMGR_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    return connmgr


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    """The auth file of this process, which has written a ``daemon.json`` beside it as a daemon does."""
    DaemonFile(tmp_path / "auth", "http://127.0.0.1:1")
    assert find_daemon(tmp_path / "auth") is not None
    return tmp_path / "auth"


def test_the_file_exists_while_the_daemon_runs_and_is_private(own_daemon: Daemon) -> None:
    path = own_daemon.auth_file.with_name("daemon.json")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    told = json.loads(path.read_text())
    assert told == {
        "url": own_daemon.url,
        "pid": own_daemon.pid,
        "started": start_of(own_daemon.pid),
        "version": __version__,
    }
    own_daemon.stop()
    assert not path.exists()


def test_commands_and_clients_find_a_daemon_on_any_port(untold: CommandLine) -> None:
    assert untold("exec", "local", "--", "echo", "found").output == "found\n"
    assert untold("status", "--json").json["url"] == untold.daemon.url
    with Client(auth_file=untold.daemon.auth_file) as client:
        assert client.base_url == untold.daemon.url
        assert client.daemon.version().build


def test_port_0_in_the_environment_does_not_count_as_an_address(untold: CommandLine) -> None:
    untold("exec", "local", "--", "true")
    untold.environment["CONNMGR_PORT"] = "0"
    untold("exec", "local", "--", "true")


def test_options_and_variables_win_over_the_file_which_wins_over_the_configuration(untold: CommandLine) -> None:
    config = untold.daemon.home / "config" / "connmgr" / "config.toml"
    config.parent.mkdir()
    config.write_text("port = 1\n")
    assert untold("status", "--json").json["url"] == untold.daemon.url
    assert "http://127.0.0.1:2:" in untold("ls", code=3, environment={"CONNMGR_PORT": "2"}).errors
    assert "http://127.0.0.1:3:" in untold("--url", "http://127.0.0.1:3", "ls", code=3).errors


def test_daemons_with_auth_files_in_one_directory_have_separate_files(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    second = first.auth_file.with_name("second")
    other = start_daemon("--auth-file", str(second))
    assert find_daemon(first.auth_file) is not None
    assert [one and one.url for one in (find_daemon(first.auth_file), find_daemon(second))] == [first.url, other.url]


def test_a_wildcard_address_is_written_as_a_reachable_one(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--host", "0.0.0.0")
    with Client(auth_file=daemon.auth_file) as client:
        assert client.base_url == f"http://127.0.0.1:{daemon.url.rpartition(':')[2]}"
        assert client.daemon.version().build
    assert url_of("::", 7) == "http://[::1]:7"


def test_the_file_of_a_killed_daemon_is_stale_and_the_next_daemon_replaces_it(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    path = daemon_file_of(daemon.auth_file)
    daemon.kill()
    with pytest.raises(ProcessLookupError, match=f"process {daemon.pid}, does not run"):
        read_daemon_file(path)
    assert find_daemon(daemon.auth_file) is None
    again = start_daemon(home=daemon.home)
    assert read_daemon_file(path).url == again.url


def test_a_process_with_a_recycled_number_is_not_the_daemon(auth_file: Path) -> None:
    path = daemon_file_of(auth_file)
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"started": told["started"] - 1}))
    with pytest.raises(ProcessLookupError):
        read_daemon_file(path)


def test_a_zombie_does_not_count_as_running() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            start_of(ended.pid)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


@pytest.mark.parametrize("spoil", [open_to_others, linked, fifo, _directory])
def test_a_file_that_others_could_have_written_is_ignored(auth_file: Path, spoil: Callable[[Path], None]) -> None:
    spoil(daemon_file_of(auth_file))
    with pytest.raises(OSError, match=r"daemon\.json"):
        read_daemon_file(daemon_file_of(auth_file))
    assert find_daemon(auth_file) is None


@pytest.mark.needs("root")
def test_another_user_s_file_is_ignored(auth_file: Path) -> None:
    os.chown(daemon_file_of(auth_file), 65533, 65533)
    with pytest.raises(PermissionError, match="not a file of this user or root"):
        read_daemon_file(daemon_file_of(auth_file))


@pytest.mark.parametrize(
    "change", [{"url": 7}, {"pid": "1"}, {"pid": 0}, {"pid": 10**30}, {"started": "now"}, {"more": 1}, None]
)
def test_malformed_content_is_ignored(auth_file: Path, change: dict[str, Any] | None) -> None:
    path = daemon_file_of(auth_file)
    path.write_text("[" if change is None else json.dumps(json.loads(path.read_text()) | change))
    assert find_daemon(auth_file) is None


@pytest.mark.needs("root", "linux")
def test_a_program_of_another_user_at_its_address_gets_no_request(own_daemon: Daemon) -> None:
    path = daemon_file_of(own_daemon.auth_file)
    os.seteuid(65533)
    try:
        impostor = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    with impostor:
        url = f"http://127.0.0.1:{impostor.getsockname()[1]}"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"url": url}))
        client = Client(auth_file=own_daemon.auth_file, timeout=DEADLINE_SECONDS)
        with client, pytest.raises(Unreachable, match=r"another user \(uid 65533\)"):
            client.daemon.version()
        with impostor.accept()[0] as told:
            assert told.recv(100) == b""


def test_only_the_daemon_that_wrote_the_file_removes_it(tmp_path: Path) -> None:
    own = DaemonFile(tmp_path / "auth", "http://127.0.0.1:1")
    DaemonFile(tmp_path / "auth", "http://127.0.0.1:2")
    own.remove()
    found = find_daemon(tmp_path / "auth")
    assert found is not None
    assert found.url == "http://127.0.0.1:2"


def test_a_daemon_that_cannot_write_the_file_serves_anyway(start_daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(0o700)
    (tmp_path / "run" / "daemon.json").mkdir()
    daemon = start_daemon("--auth-file", str(tmp_path / "run" / "auth"))
    assert "daemon.json cannot be written" in daemon.stderr()
    with Client(daemon.url, tmp_path / "run" / "auth") as client:
        assert client.daemon.version().build
