"""``connmgr doctor`` reports each problem exactly, nothing else, and changes nothing."""

from __future__ import annotations

import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.api.wire import LOCAL
from tests.cli.program import run
from tests.conftest import StartDaemon
from tests.daemon import Daemon, clean_environment
from tests.ports import reserved_port


def _doctor(home: Path, *options: str, **environment: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = run("doctor", "--json", *options, environment=clean_environment(home) | environment)
    assert done.code in (0, 1), done.errors
    findings: dict[str, list[dict[str, Any]]] = {}
    for finding in done.json:
        findings.setdefault(finding["result"], []).append(finding)
    assert bool(findings.get("problem")) == bool(done.code), findings
    return done.code, findings


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def _problems(home: Path, *options: str, **environment: str) -> str:
    with reserved_port() as port:
        code, findings = _doctor(home, *options, "--port", str(port), **environment)
    assert code == 1
    return "\n".join(f"{one['subject']}: {one['message']} {one['advice']}" for one in findings["problem"])


def _stopped(start_daemon: StartDaemon) -> Daemon:
    daemon = start_daemon()
    data = {"type": "shellEnvironment", "host": LOCAL, "elevated": False}
    daemon.client.post("/connection/add", name="one", data=data)
    daemon.stop()
    return daemon


def test_nothing_is_wrong_where_connmgr_was_never_started(tmp_path: Path, port: str) -> None:
    assert _doctor(tmp_path, "--port", port)[0] == 0
    assert not (tmp_path / "data" / "connmgr").exists()


def test_nothing_is_wrong_beside_a_running_daemon_and_nothing_is_changed(own_daemon: Daemon) -> None:
    before = _contents(own_daemon.data_dir)
    code, findings = _doctor(own_daemon.home, "--port", own_daemon.url.rpartition(":")[2])
    assert code == 0, findings
    messages = [one["message"] for one in findings["ok"]]
    assert "every record is authentic" in messages
    assert any(message.startswith("connmgr answers at") for message in messages)
    after = _contents(own_daemon.data_dir)
    assert {name: after[name] for name in ("vault.db", "vault.key", "lock")} == {
        name: before[name] for name in ("vault.db", "vault.key", "lock")
    }
    assert own_daemon.client.daemon.version().build


def test_files_open_to_others_are_named_with_the_command_that_protects_them(start_daemon: StartDaemon) -> None:
    daemon = _stopped(start_daemon)
    (daemon.data_dir / "audit.log").chmod(0o640)
    daemon.data_dir.chmod(0o755)
    found = _problems(daemon.home)
    assert f"chmod 600 {daemon.data_dir / 'audit.log'}" in found
    assert f"chmod 700 {daemon.data_dir}" in found


def test_a_lost_key_and_another_vault_s_key_are_reported(start_daemon: StartDaemon) -> None:
    daemon = _stopped(start_daemon)
    key = daemon.data_dir / "vault.key"
    key.write_bytes(os.urandom(32))
    assert "Put back the right key" in _problems(daemon.home)
    key.unlink()
    assert "Put back the right key" in _problems(daemon.home)
    assert not key.exists()


@pytest.mark.parametrize(
    "change", ["connection SET name = 'evil' WHERE name = 'one'", "category SET path = 'evil' WHERE name = 'Default'"]
)
def test_a_record_that_was_edited_is_found(start_daemon: StartDaemon, change: str) -> None:
    daemon = _stopped(start_daemon)
    database = sqlite3.connect(daemon.data_dir / "vault.db")
    with database:
        assert database.execute(f"UPDATE {change}").rowcount == 1
    database.close()
    assert "changed outside of connmgr" in _problems(daemon.home)


def test_a_damaged_vault_is_found(start_daemon: StartDaemon) -> None:
    daemon = _stopped(start_daemon)
    (daemon.data_dir / "vault.db").write_bytes(b"no database" * 1000)
    assert "connmgr vault restore" in _problems(daemon.home)


def test_bad_settings_and_a_config_that_others_may_write_are_reported(tmp_path: Path) -> None:
    assert "CONNMGR_THREADS" in _problems(tmp_path, CONNMGR_THREADS="many")
    config = tmp_path / "config" / "connmgr" / "config.toml"
    config.parent.mkdir()
    config.write_text("threads = 8\n")
    config.chmod(0o666)
    assert f"chmod 600 {config}" in _problems(tmp_path)


def test_a_port_taken_by_another_program_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, findings = _doctor(tmp_path, "--port", str(other.getsockname()[1]))
    assert code == 1
    assert [one["subject"] for one in findings["problem"]] == ["port"]


def test_leftovers_of_a_killed_daemon_are_a_warning(own_daemon: Daemon, port: str) -> None:
    own_daemon.kill()
    code, findings = _doctor(own_daemon.home, "--port", port)
    assert code == 0
    assert "auth file" in [one["subject"] for one in findings["warning"]]


def test_the_auth_file_of_another_vault_s_daemon_does_not_count_as_stale(
    own_daemon: Daemon, tmp_path: Path, port: str
) -> None:
    code, findings = _doctor(own_daemon.home, "--port", port, "--data-dir", str(tmp_path / "other"))
    assert code == 0
    (found,) = [one["message"] for one in findings["warning"] if one["subject"] == "auth file"]
    assert "running daemon" in found, "doctor calls the auth file of a daemon that runs left over"
    assert own_daemon.client.daemon.version().build


def test_the_daemon_of_another_vault_is_not_taken_for_this_one_s(own_daemon: Daemon, tmp_path: Path) -> None:
    other = tmp_path / "other"
    code, findings = _doctor(own_daemon.home, "--port", own_daemon.url.rpartition(":")[2], "--data-dir", str(other))
    assert code == 0
    (found,) = [one["message"] for one in findings["warning"] if one["subject"] == "port"]
    assert found == f"a daemon of another vault answers at {own_daemon.url}, and none has {other} open"


def test_a_daemon_is_found_by_its_daemon_file_and_its_address_is_shown(own_daemon: Daemon) -> None:
    code, findings = _doctor(own_daemon.home)
    assert code == 0, findings
    told = {one["subject"]: one["message"] for one in findings["ok"]}
    assert told["port"] == f"connmgr answers at {own_daemon.url}"
    assert told["daemon"] == f"process {own_daemon.pid} has the vault open and listens on {own_daemon.url}"
    assert str(own_daemon.pid) in told["daemon.json"]


def test_an_untrusted_daemon_file_is_a_warning_with_the_reason(own_daemon: Daemon) -> None:
    own_daemon.auth_file.with_name("daemon.json").chmod(0o644)
    code, findings = _doctor(own_daemon.home, "--port", own_daemon.url.rpartition(":")[2])
    assert code == 0
    (found,) = [one for one in findings["warning"] if one["subject"] == "daemon.json"]
    assert "open to others" in found["message"]


def test_programs_and_agent_are_checked_in_the_daemon_s_environment(start_daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").touch(0o700)
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    daemon = start_daemon(environment={"PATH": str(tmp_path / "bin"), "SSH_AUTH_SOCK": str(dead)})
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(alive))
        agent.listen()
        _, findings = _doctor(daemon.home, SSH_AUTH_SOCK=str(alive))
        assert {one["message"] for one in findings["ok"] if one["subject"] == "ssh"} == {
            f"{tmp_path}/bin/ssh in the daemon's PATH"
        }
        warned = {one["subject"]: one["message"] for one in findings["warning"]}
        assert "in the daemon's PATH" in warned["ssh-keygen"]
        assert warned["ssh agent"] == f"the daemon's SSH_AUTH_SOCK names {dead}, where no agent answers"
        other = start_daemon()
        _, findings = _doctor(other.home, SSH_AUTH_SOCK=str(alive))
        warned = {one["subject"]: one["message"] for one in findings["warning"]}
        assert warned["ssh agent"].startswith("the daemon has no SSH_AUTH_SOCK")


def test_files_from_the_future_indicate_a_wrong_clock(start_daemon: StartDaemon) -> None:
    daemon = _stopped(start_daemon)
    ahead = (daemon.data_dir / "vault.db").stat().st_mtime + 86400
    os.utime(daemon.data_dir / "vault.db", (ahead, ahead))
    assert "clock:" in _problems(daemon.home)


def test_a_person_is_shown_a_table_and_what_to_do(start_daemon: StartDaemon, port: str) -> None:
    daemon = _stopped(start_daemon)
    daemon.data_dir.chmod(0o755)
    done = run("doctor", "--port", port, environment=daemon.environment)
    assert done.code == 1
    assert "PROBLEM  data directory" in done.output
    assert done.output.rstrip().splitlines()[-1] == f"data directory: chmod 700 {daemon.data_dir}"
