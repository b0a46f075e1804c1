"""How a vault's database is opened, refused and maintained."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from connmgr.computing import Computing
from connmgr.errors import ConnmgrError, StartupError, VaultUnavailable
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import Vault, VaultLock, backends, open_database, schema
from connmgr.vault.schema import meta
from tests.deadlines import DEADLINE_SECONDS
from tests.vault.conftest import KEY, Add
from tests.vault.postgres import Postgres

OpenVault = Callable[..., Vault]

WHILE_SECONDS = 0.2
"""Time in which something that must not happen is not seen."""


@pytest.fixture
def file(tmp_path: Path, open_vault: OpenVault) -> Path:
    """A closed vault on SQLite with a few connections."""
    vault = open_vault(f"sqlite:///{tmp_path}/vault.db")
    for number in range(3):
        Add(vault)(f"host {number}")
    vault.close()
    return tmp_path / "vault.db"


def refused(url: str, message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        open_database(url)
    assert "\n" not in caught.value.message


def test_looking_creates_nothing(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/vault.db")
    assert database.empty
    assert database.key_verifier is None
    assert list(tmp_path.iterdir()) == []
    database.close()


@pytest.mark.parametrize("holder", ["token", None])
def test_only_a_token_s_search_lets_the_owner_pass_while_sqlite_works(
    file: Path, open_vault: OpenVault, holder: str | None
) -> None:
    numbers = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1e5) SELECT max(i) FROM n"
    database = open_vault(f"sqlite:///{file}").database
    computing = Computing(owner=DEADLINE_SECONDS)
    reads, goes_on, found = threading.Event(), threading.Event(), threading.Event()

    def work(tx: sa.Connection) -> None:
        reads.set()
        assert goes_on.wait(DEADLINE_SECONDS)
        assert tx.scalar(sa.text(numbers)) == 100_000
        found.set()

    def search() -> None:
        with computing.turn(holder):
            database.read(work)

    thread = threading.Thread(target=search)
    thread.start()
    assert reads.wait(DEADLINE_SECONDS)
    with computing.turn(None):
        goes_on.set()
        if holder is None:
            assert found.wait(DEADLINE_SECONDS), "the owner waits for itself"
        else:
            assert not found.wait(WHILE_SECONDS), "it goes on beside the owner"
    assert found.wait(DEADLINE_SECONDS)
    thread.join()


def test_looking_changes_nothing(file: Path) -> None:
    before = file.read_bytes()
    database = open_database(f"sqlite:///{file}")
    assert not database.empty
    assert database.key_verifier == KEY.verifier()
    database.close()
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == {"vault.db": before}


def test_its_files_are_for_the_owner_alone(tmp_path: Path, open_vault: OpenVault) -> None:
    previous = os.umask(0)
    try:
        vault = open_vault(f"sqlite:///{tmp_path}/vault.db")
        Add(vault)("host")
    finally:
        os.umask(previous)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"vault.db": 0o600, "vault.db-wal": 0o600, "vault.db-shm": 0o600}


def test_a_looser_mode_is_tightened(file: Path, open_vault: OpenVault) -> None:
    file.chmod(0o644)
    open_vault(f"sqlite:///{file}")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_sqlite_is_set_to_be_durable_and_consistent(file: Path, open_vault: OpenVault) -> None:
    vault = open_vault(f"sqlite:///{file}")
    pragmas = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "temp_store": 2, "secure_delete": 1}
    for name, value in pragmas.items():
        assert vault.database.read(lambda tx, name=name: tx.exec_driver_sql(f"PRAGMA {name}").scalar()) == value


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a spoilt page": lambda content: content[:4096] + b"\xff" * 4096 + content[8192:],
    "a spoilt header": lambda content: b"\xff" * 100 + content[100:],
    "a page less": lambda content: content[:-4096],
    "half of it": lambda content: content[: len(content) // 2],
    "no database": lambda _: b"Not a database, but a text.\n" * 300,
    "a few bytes": lambda _: b"SQLite",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_refused_and_left_as_it_is(file: Path, damage: str) -> None:
    content = DAMAGES[damage](file.read_bytes())
    file.write_bytes(content)
    refused(f"sqlite:///{file}", "damaged.*restore")
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == {"vault.db": content}


@pytest.mark.parametrize("rest", [b"", b"S", b"SQLite format 3\0" + bytes(480)], ids=len)
@pytest.mark.parametrize("log", [b"", b"the last changes"])
def test_a_vault_that_was_cut_to_nothing_is_no_new_one(file: Path, rest: bytes, log: bytes) -> None:
    file.write_bytes(rest)
    (file.parent / "vault.db-wal").write_bytes(log)
    refused(f"sqlite:///{file}", "is empty.*restore it from a backup")
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == {"vault.db": rest, "vault.db-wal": log}


def test_a_vault_without_its_file_keeps_its_last_changes(file: Path) -> None:
    file.unlink()
    (file.parent / "vault.db-wal").write_bytes(b"the last changes")
    refused(f"sqlite:///{file}", "is missing, .*vault.db-wal: put the file back.* remove that file, too")
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == {"vault.db-wal": b"the last changes"}


def test_a_new_vault_is_in_its_file_and_not_in_the_log_alone(tmp_path: Path, open_vault: OpenVault) -> None:
    vault = open_vault(f"sqlite:///{tmp_path}/vault.db")
    id = Add(vault)("host")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "vault.db").write_bytes((tmp_path / "vault.db").read_bytes())
    assert id not in open_vault(f"sqlite:///{tmp_path}/copy/vault.db").connections.query()
    assert open_database(f"sqlite:///{tmp_path}/copy/vault.db").key_verifier == KEY.verifier()


def test_a_vault_that_was_killed_while_it_was_created_is_begun_again(tmp_path: Path, open_vault: OpenVault) -> None:
    (tmp_path / ".vault.db.new").write_bytes(b"half")
    backends.SQLite(tmp_path / "vault.db").prepare()
    assert (tmp_path / "vault.db").stat().st_size >= 512
    vault = open_vault(f"sqlite:///{tmp_path}/vault.db")
    assert Add(vault)("host") in vault.connections.query()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vault.db", "vault.db-shm", "vault.db-wal"]


def test_a_damaged_database_that_was_not_closed_is_left_as_it_is(file: Path) -> None:
    held = sqlite3.connect(file)
    held.execute("PRAGMA wal_autocheckpoint = 0")
    with held:
        held.execute("UPDATE connection SET state = '{\"a\": 1}'")
    contents = {name: (file.parent / name).read_bytes() for name in ("vault.db", "vault.db-wal")}
    held.close()
    contents["vault.db"] = DAMAGES["a spoilt page"](contents["vault.db"])
    for name, content in contents.items():
        (file.parent / name).write_bytes(content)
    refused(f"sqlite:///{file}", "damaged.*restore")
    for name, content in contents.items():
        assert (file.parent / name).read_bytes() == content, name


def test_a_database_that_was_not_closed_is_read_whole(file: Path, tmp_path: Path) -> None:
    held = sqlite3.connect(file)
    held.execute("PRAGMA wal_autocheckpoint = 0")
    with held:
        held.execute("UPDATE meta SET value = x'00' WHERE name = 'key_verifier'")
    copies = tmp_path / "copy"
    copies.mkdir()
    for name in ("vault.db", "vault.db-wal"):
        (copies / name).write_bytes((tmp_path / name).read_bytes())
    held.close()
    database = open_database(f"sqlite:///{copies}/vault.db")
    assert database.key_verifier == b"\0"
    database.close()


def test_another_program_s_database_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "vault.db")) as raw:
        raw.execute("CREATE TABLE other (x)")
    before = (tmp_path / "vault.db").read_bytes()
    refused(f"sqlite:///{tmp_path}/vault.db", "not a connmgr vault")
    assert (tmp_path / "vault.db").read_bytes() == before


def test_a_newer_vault_is_refused(vault: Vault, url: str) -> None:
    newer = sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    vault.database.write(lambda tx: tx.execute(newer))
    refused(url, "newer connmgr.*9999.*update connmgr")


def test_another_key_is_refused_and_changes_nothing(vault: Vault, url: str, open_vault: OpenVault) -> None:
    with pytest.raises(StartupError, match="key does not belong to this vault"):
        open_vault(url, VaultKey(b"x" * 32))
    database = open_database(url)
    assert database.key_verifier == KEY.verifier()
    database.close()


def test_a_vault_without_its_verifier_is_refused(vault: Vault, url: str, open_vault: OpenVault) -> None:
    vault.database.check = lambda _: None
    vault.database.write(lambda tx: tx.execute(meta.delete().where(meta.c.name == schema.KEY_VERIFIER)))
    with pytest.raises(StartupError, match="does not belong"):
        open_vault(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "needs a file"),
        ("mysql://host/name", "in SQLite or PostgreSQL"),
        ("no url: secret", "cannot be read"),
        ("postgresql+psycopg://me:secret@127.0.0.1:1/name", "127.0.0.1:1/name cannot be used: .*refused"),
    ],
)
def test_a_bad_url_is_refused_without_showing_a_password(url: str, message: str) -> None:
    refused(url, message)
    with pytest.raises(StartupError) as caught:
        open_database(url)
    assert "secret" not in caught.value.message


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path, open_vault: OpenVault) -> None:
    with pytest.raises(StartupError, match="cannot be written to: No such file"):
        open_vault(f"sqlite:///{tmp_path}/missing/vault.db")


@pytest.mark.needs("postgres")
def test_a_shared_database_is_refused_where_it_is_something_else(postgres: Postgres) -> None:
    import psycopg

    name = postgres.create()
    with psycopg.connect(postgres.dsn(name)) as connection:
        connection.execute("CREATE TABLE other (x text)")
    refused(postgres.dsn(name), "not a connmgr vault")
    refused(postgres.dsn("missing"), 'database "missing" does not exist')


def test_one_daemon_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    message = re.escape(f"Another connmgr daemon (pid {os.getpid()}) uses this vault")
    with VaultLock(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(StartupError, match=message):
            VaultLock(path)
    VaultLock(path).release()


@pytest.mark.parametrize("begins", [False, True], ids=["alone", "with a program that has yet to begin"])
def test_the_lock_of_a_killed_daemon_is_free(tmp_path: Path, *, begins: bool) -> None:
    program = (
        "import os, sys, time; from pathlib import Path; from connmgr.vault.backends import VaultLock\n"
        "lock = VaultLock(Path(sys.argv[1]))\n"
        f"if {begins} and not os.fork(): time.sleep(2); os._exit(0)\n"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "lock"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StartupError, match=f"pid {holder.pid}"):
            VaultLock(tmp_path / "lock")
        holder.kill()
        holder.wait(10)
    VaultLock(tmp_path / "lock").release()


def test_a_file_that_another_process_holds_is_waited_for_and_then_refused(
    file: Path, open_vault: OpenVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connmgr.vault.backends._PRAGMAS", ("busy_timeout = 50",))
    vault = open_vault(f"sqlite:///{file}")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(VaultUnavailable, match="Another process holds"):
            vault.database.write(lambda _: None, timeout=0.2)
        assert vault.connections.query()
        other.execute("ROLLBACK")
        Add(vault)("afterwards")


def test_writers_wait_for_each_other_no_longer_than_they_may(vault: Vault) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(_: sa.Connection) -> None:
        inside.set()
        assert go_on.wait(30)

    holder = threading.Thread(target=lambda: vault.database.write(hold))
    holder.start()
    try:
        assert inside.wait(30)
        with pytest.raises(VaultUnavailable, match="take too long"):
            vault.database.write(lambda _: None, timeout=0.05)
        assert vault.connections.query()
    finally:
        go_on.set()
        holder.join(30)


def test_an_error_within_a_change_undoes_it(vault: Vault, add: Add) -> None:
    def fail(tx: sa.Connection) -> None:
        tx.execute(sa.text("DELETE FROM connection"))
        raise ConnmgrError("no")

    with pytest.raises(ConnmgrError, match="no"):
        vault.database.write(fail)
    assert len(vault.connections.query()) == 1
