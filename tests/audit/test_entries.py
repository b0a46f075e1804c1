"""The audit log: one numbered entry for each operation, without content, in files of limited size."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from connmgr.audit.log import KEPT_FILES
from connmgr.errors import StartupError
from connmgr.secrets.vault_key import VaultKey
from tests.api.wire import LOCAL, add, send
from tests.audit.logs import open_log
from tests.conftest import Recorded, StartDaemon
from tests.daemon import Daemon, DaemonExitedError

FACTS = {"id": "1", "path": "/shell/exec", "status": 200, "method": "POST"}


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _entries_of(daemon: Daemon) -> list[dict[str, Any]]:
    return _entries(daemon.data_dir / "audit.log")


def test_a_command_is_recorded_with_its_outcome_and_without_its_text(clean_daemon: Daemon, recorded: Recorded) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    client.post("/shell/exec", connection=LOCAL, command="echo canary; exit 3", stdin="canary", env={"A": "canary"})
    client.post("/shell/stop", connection=LOCAL)
    started, executed, stopped = recorded()
    assert [entry["path"] for entry in (started, executed, stopped)] == ["/shell/start", "/shell/exec", "/shell/stop"]
    assert (executed["exitCode"], executed["stdoutBytes"], executed["stderrBytes"]) == (3, 7, 0)
    assert (executed["connection"], executed["status"]) == (LOCAL, 200)
    assert executed["ms"] > 0
    assert executed["session"] == started["session"]
    key = VaultKey((clean_daemon.data_dir / "vault.key").read_bytes())
    assert executed["commandMac"] == key.audit_mac(b"echo canary; exit 3").hex()
    assert executed["commandBytes"] == len("echo canary; exit 3")
    assert "canary" not in (clean_daemon.data_dir / "audit.log").read_text()


def test_an_update_tells_what_it_changed_and_no_value(clean_daemon: Daemon, recorded: Recorded) -> None:
    client = clean_daemon.client
    data = {"type": "ssh", "host": "old.example", "user": "u", "password": "canary"}
    id = add(client, "c", **data)
    changed = data | {"host": "new.example", "password": "canary too"}
    client.post("/connection/update", connection=id, name="d", data=changed, validate=False)
    client.post("/connection/update", connection=id, name="d", validate=False)
    _, updated, same = recorded()
    assert updated.get("changed") == ["name", "data.host", "data.password"], "the log hides what an update changed"
    assert same["changed"] == []
    text = (clean_daemon.data_dir / "audit.log").read_text()
    assert not any(value in text for value in ("canary", "new.example"))


def test_a_removal_tells_all_that_went(clean_daemon: Daemon, recorded: Recorded) -> None:
    client = clean_daemon.client
    root = client.post("/category/query", filter="*")["found"][0]
    outer = client.post("/category/add", name="outer", parent=root)["category"]
    inner = client.post("/category/add", name="inner", parent=outer)["category"]

    def add(name: str, **data: Any) -> str:
        data = {"type": "ssh", "host": name, "user": "u", **data}
        added = client.post("/connection/add", name=name, data=data, category=inner, validate=False)
        return str(added["connection"])

    first, second = add("first"), add("second")
    over = add("over", gateway=second)
    client.post("/connection/remove", connections=[second])
    client.post("/category/remove", categories=[outer], removeChildrenCategories=True, removeContents=True)
    gone = [entry for entry in recorded() if entry.get("removed")]
    told = {(entry["path"], entry.get("connection") or entry["category"]) for entry in gone}
    assert told == {
        ("/connection/remove", over),
        ("/category/remove", first),
        ("/category/remove", outer),
        ("/category/remove", inner),
    }, "connections or categories vanish without an entry"


def test_the_text_of_commands_is_recorded_if_set(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--audit-commands")
    daemon.client.post("/shell/start", connection=LOCAL)
    daemon.client.post("/shell/exec", connection=LOCAL, command="printf 'ä\n'")
    daemon.stop()
    assert _entries_of(daemon)[-1]["command"] == "printf 'ä\n'"


def test_files_are_recorded_with_name_size_and_digest(clean_daemon: Daemon, recorded: Recorded, tmp_path: Path) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    blob = client.fs.blob(b"canary")
    client.post("/fs/write", connection=LOCAL, blob=blob, path=str(tmp_path / "file"))
    assert client.fs.read(LOCAL, str(tmp_path / "file")) == b"canary"
    client.post("/fs/move", connection=LOCAL, source=str(tmp_path / "file"), target=str(tmp_path / "other"))
    _, stored, written, read, moved = recorded()
    assert (stored["path"], stored["bytes"]) == ("/fs/blob", 6)
    assert (written["file"], written["bytes"]) == (str(tmp_path / "file"), 6)
    assert written["sha256"] == sha256(b"canary").hexdigest()
    assert (read["path"], read["file"], read["bytes"]) == ("/fs/read", str(tmp_path / "file"), 6)
    assert (moved["source"], moved["target"]) == (str(tmp_path / "file"), str(tmp_path / "other"))
    assert "canary" not in (clean_daemon.data_dir / "audit.log").read_text()


def test_entries_about_secrets_vault_and_connections_contain_no_secrets(own_daemon: Daemon) -> None:
    client = own_daemon.client
    encrypted = client.secret.encrypt("canary")
    client.secret.decrypt(encrypted)
    data = {"type": "ssh", "host": "host.example", "user": "ci", "password": "canary"}
    added = client.post("/connection/add", name="host", data=data)
    assert isinstance(added, dict)
    client.vault.add_user("alice", "canary passphrase")
    own_daemon.stop()
    entries = _entries_of(own_daemon)
    assert [entry["path"] for entry in entries] == [
        "/secret/encrypt",
        "/secret/decrypt",
        "/connection/add",
        "/vault/user/add",
    ]
    assert (entries[2]["name"], entries[2]["connection"]) == ("host", added["connection"])
    assert entries[3]["user"] == "alice"
    assert "canary" not in (own_daemon.data_dir / "audit.log").read_text()


def test_refusals_are_recorded_but_not_those_of_strangers(clean_daemon: Daemon, recorded: Recorded) -> None:
    send(clean_daemon.url, "/shell/start", {"connection": LOCAL})
    send(clean_daemon.url, "/shell/start", {"connection": LOCAL}, {"Authorization": "Bearer wrong"})
    with pytest.raises(Exception, match="No shell session"):
        clean_daemon.client.post("/shell/exec", connection=LOCAL, command="true")
    (entry,) = recorded()
    assert (entry["status"], entry["code"], entry["connection"]) == (400, "no_shell", LOCAL)


def test_a_body_that_is_too_large_is_recorded(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--max-body", "2000", "--max-blob", "2000")
    for path in ("/shell/exec", "/fs/blob"):
        with pytest.raises(Exception, match="exceeds 2000 bytes"):
            daemon.client.send(path, b" " * 2001, "application/json")
    daemon.stop()
    assert [(entry["path"], entry["status"], entry["code"]) for entry in _entries_of(daemon)] == [
        ("/shell/exec", 413, "body_too_large"),
        ("/fs/blob", 413, "body_too_large"),
    ]


def test_numbers_continue_in_the_next_daemon(start_daemon: StartDaemon, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for _ in range(2):
        daemon = start_daemon(home=home)
        daemon.client.secret.encrypt("x")
        daemon.client.secret.encrypt("y")
        daemon.stop()
    assert [entry["seq"] for entry in _entries_of(daemon)] == [1, 2, 3, 4]
    assert stat.S_IMODE((daemon.data_dir / "audit.log").stat().st_mode) == 0o600


def test_a_log_that_is_open_to_others_or_a_link_prevents_the_start(start_daemon: StartDaemon, tmp_path: Path) -> None:
    home = tmp_path / "home"
    daemon = start_daemon(home=home)
    daemon.stop()
    log = daemon.data_dir / "audit.log"
    log.chmod(0o644)
    with pytest.raises(DaemonExitedError, match="chmod 600"):
        start_daemon(home=home)
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DaemonExitedError, match="audit log"):
        start_daemon(home=home)
    assert not (tmp_path / "elsewhere").exists()


def test_files_are_rotated_and_their_number_is_limited(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=1000)
    for _ in range(100):
        log.record(FACTS, {"command": "true"}, {"exitCode": 0})
        # The oldest file goes when the vault is told.
        log.anchor()
    log.close()
    kept = sorted(tmp_path.glob("audit.log*"), key=lambda path: int(path.suffix[1:]) if path.suffix != ".log" else 0)
    assert len(kept) == KEPT_FILES
    assert all(path.stat().st_size <= 1000 for path in kept)
    numbers = [entry["seq"] for path in reversed(kept) for entry in _entries(path)]
    assert numbers == list(range(numbers[0], 101))


def test_numbers_continue_after_a_rotation_and_after_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text("")
    path.chmod(0o600)
    path.with_name("audit.log.1").write_text('{"seq":41}\n{"seq":4')
    log = open_log(tmp_path)
    log.record(FACTS, {}, {})
    log.close()
    assert _entries(path)[0]["seq"] == 42


def test_threads_write_whole_lines_with_distinct_numbers(tmp_path: Path) -> None:
    log = open_log(tmp_path)

    def write() -> None:
        for _ in range(50):
            log.record(FACTS, {"path": b"\xff" * 100}, {})

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    entries = _entries(tmp_path / "audit.log")
    assert [entry["seq"] for entry in entries] == list(range(1, 401))
    assert entries[0]["file"] == r"\xff" * 100


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_loses_entries_which_is_reported_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    log.record(FACTS, {}, {})
    usual, full = log._descriptor, os.open("/dev/full", os.O_WRONLY)
    log._descriptor = full
    log.record(FACTS, {}, {})
    log.record(FACTS, {}, {})
    log._descriptor = usual
    log.record(FACTS, {}, {})
    log.close()
    os.close(full)
    assert log.lost == 2
    assert [entry["seq"] for entry in _entries(tmp_path / "audit.log")] == [1, 4]
    (message,) = [record.getMessage() for record in caplog.records]
    assert os.strerror(errno.ENOSPC) in message


def test_a_directory_in_place_of_the_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.log").mkdir()
    with pytest.raises(StartupError, match="audit log"):
        open_log(tmp_path)
