"""Backups of both databases in use, restored into both."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from connmgr.errors import BackupFailed, StartupError
from connmgr.vault import Vault, open_database
from connmgr.vault.backup import backup, restore, restore_into
from connmgr.vault.names import ALL_CONNECTIONS
from connmgr.vault.schema import VERSION_TABLE
from tests.vault.conftest import Add
from tests.vault.renewed import KEY

OpenVault = Callable[..., Vault]


@pytest.fixture
def saved(url: str, vault: Vault, add: Add, tmp_path: Path) -> Path:
    """A backup of a vault with a host and two wrappers in a separate category."""
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    host = add("host", category=team)
    add("inner", {"host": "root"}, parent=add("root", {"host": host}, parent=host))
    database = open_database(url)
    backup(database, tmp_path / "backup")
    database.close()
    return tmp_path / "backup"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of an empty vault on SQLite."""
    directory = tmp_path_factory.mktemp("empty")
    database = open_database(f"sqlite:///{directory}/vault.db")
    vault = Vault(database, KEY)
    backup(database, directory / "backup")
    vault.close()
    return directory / "backup"


def content(vault: Vault) -> list[object]:
    ids, categories = vault.connections.query(), vault.categories.query()
    return [*vault.connections.infos(ids), *vault.categories.infos(categories)]


def test_a_backup_restores_all_of_it(saved: Path, vault: Vault, tmp_path: Path, open_vault: OpenVault) -> None:
    restored, _ = restore(saved, tmp_path / "new")
    assert content(open_vault(f"sqlite:///{restored}")) == content(vault)


def test_a_backup_restores_into_a_database(
    saved: Path, vault: Vault, url: str, tmp_path: Path, request: pytest.FixtureRequest, open_vault: OpenVault
) -> None:
    if url.startswith("sqlite"):
        empty = f"sqlite:///{tmp_path}/other.db"
    else:
        server = request.getfixturevalue("postgres")
        empty = server.dsn(server.create())
    before = saved.read_bytes()
    database = open_database(empty)
    restore_into(saved, database)
    database.close()
    assert content(open_vault(empty)) == content(vault)
    assert saved.read_bytes() == before
    full = open_database(empty)
    with pytest.raises(BackupFailed, match="not empty"):
        restore_into(saved, full)
    full.close()


def test_what_a_killed_restore_has_left_is_neither_a_vault_nor_an_empty_directory(saved: Path, tmp_path: Path) -> None:
    directory = tmp_path / "restored"
    directory.mkdir()
    remains = directory / ".vault.db.4711.part"
    shutil.copyfile(saved, remains)
    with pytest.raises(BackupFailed, match=f"{remains} is of another restore"):
        restore(saved, directory)
    with pytest.raises(StartupError, match=f"There is no vault at .*: a restore has left {remains}"):
        open_database(f"sqlite:///{directory / 'vault.db'}")
    remains.unlink()
    restore(saved, directory)
    open_database(f"sqlite:///{directory / 'vault.db'}").close()


def test_files_beside_the_vault_go_with_it_into_a_database(
    url: str, vault: Vault, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    (directory / "known_hosts").write_text("host key\n")
    database = open_database(url)
    contents = backup(database, tmp_path / "backup", directory)
    database.close()
    assert contents.files == {"known_hosts": b"host key\n"}
    if url.startswith("sqlite"):
        empty = f"sqlite:///{tmp_path}/other.db"
    else:
        server = request.getfixturevalue("postgres")
        empty = server.dsn(server.create())
    there = tmp_path / "there"
    there.mkdir(mode=0o700)
    (there / "known_hosts").write_text("another\n")
    database = open_database(empty)
    with pytest.raises(BackupFailed, match="exists already"):
        restore_into(tmp_path / "backup", database, there)
    assert (there / "known_hosts").read_text() == "another\n"
    (there / "known_hosts").unlink()
    assert restore_into(tmp_path / "backup", database, there).files == contents.files
    assert (there / "known_hosts").read_text() == "host key\n"
    (there / "known_hosts").unlink()
    with pytest.raises(BackupFailed, match="not empty"):
        restore_into(tmp_path / "backup", database, there)
    database.close()
    assert list(there.iterdir()) == []


def test_a_backup_is_one_file_for_its_owner_alone(saved: Path, tmp_path: Path) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == ["backup"]
    with closing(sqlite3.connect(saved)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_restored_vault_is_for_its_owner_alone(saved: Path, tmp_path: Path) -> None:
    restored, _ = restore(saved, tmp_path / "new")
    assert stat.S_IMODE(restored.stat().st_mode) == 0o600
    assert stat.S_IMODE(restored.parent.stat().st_mode) == 0o700
    assert list(restored.parent.iterdir()) == [restored]


def test_a_backup_holds_one_moment_of_a_vault_that_is_written_to(
    url: str, vault: Vault, tmp_path: Path, open_vault: OpenVault
) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            host = Add(vault)(f"host {number}")
            Add(vault)("root", {"host": host}, parent=host)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    database = open_database(url)
    try:
        for number in range(3):
            backup(database, tmp_path / f"backup{number}")
    finally:
        stop.set()
        writer.join(60)
        database.close()
    for number in range(3):
        restored = open_vault(f"sqlite:///{restore(tmp_path / f'backup{number}', tmp_path / f'new{number}')[0]}")
        hosts = len(restored.connections.query("*", "host*"))
        assert hosts - len(restored.connections.query("*", "host*/root")) in (0, 1)


def test_an_existing_file_is_not_replaced(saved: Path, url: str, tmp_path: Path) -> None:
    before = saved.read_bytes()
    database = open_database(url)
    with pytest.raises(BackupFailed, match="exists already"):
        backup(database, saved)
    database.close()
    assert saved.read_bytes() == before
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    with pytest.raises(BackupFailed, match="not empty"):
        restore(saved, full)
    assert [path.name for path in full.iterdir()] == ["file"]


def test_a_backup_that_cannot_be_written_leaves_nothing(url: str, vault: Vault, tmp_path: Path) -> None:
    database = open_database(url)
    with pytest.raises(BackupFailed, match="No such file"):
        backup(database, tmp_path / "missing" / "backup")
    database.close()
    assert not any("backup" in path.name for path in tmp_path.iterdir())


def damaged(saved: Path) -> bytes:
    content = bytearray(saved.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    return bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _: b"", "empty"),
        (lambda _: b"no database at all" * 500, "not a database"),
        (damaged, "[Pp]age|malformed"),
        (lambda saved: saved.read_bytes()[:8192], "[Pp]age|malformed"),
        # SQLite repeats the word in its error, which Python then cannot decode.
        (lambda saved: saved.read_bytes().replace(b"CREATE TABLE document", b"CREATE \xffABLE document"), "damaged"),
    ],
)
def test_a_spoilt_backup_is_refused(saved: Path, tmp_path: Path, spoil: Callable[[Path], bytes], message: str) -> None:
    bad, new = tmp_path / "bad", tmp_path / "new"
    bad.write_bytes(spoil(saved))
    with pytest.raises(BackupFailed, match=message):
        restore(bad, new)
    assert list(new.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM backup WHERE name = 'format'",
        "DROP TABLE backup_file",
        "UPDATE backup SET value = 'no JSON' WHERE name = 'leftOut'",
        "UPDATE backup SET value = '[1]' WHERE name = 'leftOut'",
        """UPDATE backup SET value = '[{"name": "blobs", "reason": "", "files": {"spool": "large"}}]'"""
        " WHERE name = 'leftOut'",
        "UPDATE backup SET value = '\"1\"' WHERE name = 'format'",
        "UPDATE backup SET value = 'NaN' WHERE name = 'format'",
        "UPDATE backup SET value = replace(hex(zeroblob(50000)), '00', '[') WHERE name = 'leftOut'",
        "UPDATE backup SET value = CAST(x'22ff22' AS TEXT) WHERE name = 'created'",
        f"UPDATE {VERSION_TABLE} SET version_num = CAST(x'ff' AS TEXT)",
        "INSERT INTO backup_file VALUES ('known_hosts', 'text')",
        "INSERT INTO backup_file VALUES (x'00', x'00')",
        "INSERT INTO backup_file VALUES ('known' || char(0) || 'hosts', x'00')",
        "INSERT INTO backup_file VALUES ('../known_hosts', x'00')",
        "INSERT INTO backup_file VALUES ('vault.db', x'00')",
    ],
)
def test_a_backup_with_a_damaged_description_of_itself_is_refused(empty: Path, tmp_path: Path, change: str) -> None:
    changed = tmp_path / "changed"
    shutil.copy(empty, changed)
    with closing(sqlite3.connect(changed)) as raw, raw:
        raw.execute(change)
    with pytest.raises(BackupFailed, match=r"damaged|unexpected file|no such table|decode"):
        restore(changed, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == [], "a part of a refused backup is left"


def test_another_program_s_database_is_refused_as_a_backup(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other")) as raw:
        raw.execute("CREATE TABLE other (x)")
    with pytest.raises(BackupFailed, match="not a connmgr vault"):
        restore(tmp_path / "other", tmp_path / "new")
    with pytest.raises(BackupFailed, match="No such file"):
        restore(tmp_path / "missing", tmp_path / "new")
