"""Backup beside a running daemon, and restore into an empty directory: with the key, secrets can be opened again."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.api.wire import add
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, run
from tests.conftest import StartDaemon
from tests.daemon import DaemonExitedError


def test_a_backup_is_restored_with_its_secrets(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    encrypted = daemon.client.post("/secret/encrypt", value="hunter2")["encrypted"]
    data = {"type": "ssh", "host": "server.example", "user": "me", "password": "hunter2"}
    added = add(daemon.client, "server", **data)
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


@pytest.mark.needs("sshd", "ssh")
def test_on_an_empty_machine_the_hosts_are_known_and_tokens_work(
    start_daemon: StartDaemon, start_sshd: StartSshd, tmp_path: Path
) -> None:
    server, before = start_sshd(), CommandLine(start_daemon())
    data = [f"port={server.port}", f"user={server.user}", f"identity.file={server.client_key}"]
    before("add", "ssh", "web", "host=127.0.0.1", *data, "hostKeyChecking=acceptNew")
    assert before("exec", "web", "--", "echo met").output == "met\n"
    before("edit", "web", "hostKeyChecking=strict")
    token = tmp_path / "token"
    before("token", "create", "--for", "ci", "--expires", "1h", "--may", "argv:/bin/echo *", "--output", str(token))
    before("command", "save", "greet", "--", "/bin/echo", "hello")
    recordings = before.daemon.data_dir / "recordings"
    recordings.mkdir(mode=0o700)
    (recordings / "one.cast").write_text("x" * 1234)
    file = tmp_path / "vault.backup"
    done = before("vault", "backup", str(file))
    for said in ("2 connections", "1 token", "1 saved command", "known_hosts (1 line)", "recordings", "1,234 bytes"):
        assert said in done.output, done.output
    for said in ("the vault's key", "the audit log", "config.toml"):
        assert said in done.output, done.output

    home = tmp_path / "elsewhere"
    directory = home / "data" / "connmgr"
    restored = before("vault", "restore", str(file), "--data-dir", str(directory)).output
    for said in ("2 connections", "known_hosts (1 line)", "recordings", "vault.key", "by connmgr"):
        assert said in restored, restored
    assert sorted(one.name for one in directory.iterdir()) == ["known_hosts", "vault.db"]
    assert stat.S_IMODE((directory / "known_hosts").stat().st_mode) == 0o600
    shutil.copy2(before.daemon.data_dir / "vault.key", directory / "vault.key")
    before.daemon.stop()
    after = CommandLine(start_daemon(home=home))
    assert after("exec", "web", "--", "echo known").output == "known\n"
    assert after("exec", "web", "--token-file", str(token), "--argv", "--", "echo", "may").output == "may\n"
    # Without the remembered key the same login is refused.
    (directory / "known_hosts").unlink()
    after("disconnect", "web")
    assert "not known" in after("exec", "web", "--", "true", code=125).errors


def test_programs_read_what_a_backup_has(start_daemon: StartDaemon, tmp_path: Path) -> None:
    connmgr = CommandLine(start_daemon())
    (connmgr.daemon.data_dir / "known_hosts").write_text("host ssh-ed25519 AAAA\n")
    (connmgr.daemon.data_dir / ".hidden").write_text("x")
    (connmgr.daemon.data_dir / "old.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    (connmgr.daemon.data_dir / "link").symlink_to("/etc/hostname")
    file = connmgr.daemon.data_dir / "vault.backup"
    told = connmgr("vault", "backup", str(file), "--json").json
    assert (told["format"], told["files"], told["numbers"]["connections"]) == (1, {"known_hosts": 22}, 1)
    left_out = {one["name"]: one for one in told["leftOut"]}
    assert {".hidden", "old.db", "link", "the vault's key", "the audit log"} <= set(left_out)
    assert left_out["the vault's key"]["files"] == {"vault.key": 32}
    assert "regular file" in left_out["link"]["reason"]
    connmgr("vault", "restore", str(file), "--data-dir", str(tmp_path / "new"))
    with closing(sqlite3.connect(tmp_path / "new" / "vault.db")) as raw:
        assert not raw.execute("SELECT name FROM sqlite_master WHERE name LIKE 'backup%'").fetchall()


def test_an_older_backup_is_restored_and_a_newer_or_forged_one_refused(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    connmgr = CommandLine(start_daemon())
    file = tmp_path / "vault.backup"
    connmgr("vault", "backup", str(file))

    def changed(name: str, *statements: str) -> str:
        copy = tmp_path / name
        shutil.copy2(file, copy)
        with closing(sqlite3.connect(copy)) as raw, raw:
            for statement in statements:
                raw.execute(statement)
        return str(copy)

    older = changed("older", "DROP TABLE backup", "DROP TABLE backup_file")
    done = connmgr("vault", "restore", older, "--data-dir", str(tmp_path / "from older"))
    assert "trust the hosts again" in done.output
    newer = changed("newer", "UPDATE backup SET value = '2' WHERE name = 'format'")
    refused = connmgr("vault", "restore", newer, "--data-dir", str(tmp_path / "from newer"), code=1)
    assert "has format 2" in refused.errors
    for number, name in enumerate(("../outside", "vault.key", "vault.db", "api.key", ".profile", "audit.log.1")):
        forged = changed(f"forged{number}", f"INSERT INTO backup_file VALUES ('{name}', x'00')")
        directory = tmp_path / f"from forged{number}"
        refused = connmgr("vault", "restore", forged, "--data-dir", str(directory), code=1)
        assert "has an unexpected file" in refused.errors, name
        assert list(directory.iterdir()) == []
    assert not (tmp_path / "outside").exists()
