"""After a kill at any moment the vault is consistent and has everything acknowledged."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from connmgr.errors import VaultUnavailable
from connmgr.vault import Vault, open_database
from connmgr.vault.names import LOCAL
from tests.vault.conftest import KEY, Add
from tests.vault.killed import migrate, process, write
from tests.vault.postgres import Postgres

KILLS, MIGRATIONS_KILLED = 12, 8


@pytest.mark.slow
def test_no_acknowledged_change_is_lost(tmp_path: Path) -> None:
    url, generator = f"sqlite:///{tmp_path}/vault.db", random.Random(1)
    acknowledged: set[str] = set()
    for _ in range(KILLS):
        with process(write, url) as (child, pipe):
            acknowledged.add(pipe.recv())
            end = time.monotonic() + generator.uniform(0, 0.1)
            while (rest := end - time.monotonic()) > 0 and pipe.poll(rest):
                acknowledged.add(pipe.recv())
            child.kill()
            child.join(30)
            try:
                while True:
                    acknowledged.add(pipe.recv())
            except EOFError:
                pass
        vault = Vault(open_database(url), KEY)
        stored = vault.connections.query()
        assert acknowledged <= set(stored)
        assert len(vault.connections.infos(stored)) == len(stored)
        vault.close()
    with closing(sqlite3.connect(tmp_path / "vault.db")) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgres"))])
def test_a_migration_happens_or_does_not(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    generator = random.Random(2)

    def new_url(number: int) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/vault{number}.db"
        server: Postgres = request.getfixturevalue("postgres")
        return server.dsn(server.create())

    with process(migrate, new_url(0)) as (_, pipe):
        assert pipe.recv() == "begins"
        start = time.monotonic()
        assert pipe.recv() == "done"
        takes = time.monotonic() - start
    before = 0
    for number in range(1, 10 * MIGRATIONS_KILLED + 1):
        if number > MIGRATIONS_KILLED and before:
            break
        url = new_url(number)
        with process(migrate, url) as (child, pipe):
            assert pipe.recv() == "begins"
            pipe.poll(generator.uniform(0, takes))
            child.kill()
            child.join(30)
        database = open_database(url)
        before += database.empty
        vault = Vault(database, KEY)
        assert vault.connections.query() == [LOCAL]
        assert len(vault.categories.query()) == 2
        vault.close()
    assert before, "no kill came before the end of a migration"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.needs("root", "linux")
def test_a_full_disk_is_told_and_survived(small_disk: Path, open_vault: Callable[..., Vault]) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    vault = open_vault(f"sqlite:///{small_disk}/vault.db")
    stored: list[str] = []

    def fill() -> None:
        for number in range(10_000):
            stored.append(Add(vault)(f"host {number}", {"host": "x" * 2000, "number": number}))

    with pytest.raises(VaultUnavailable, match="disk is full"):
        fill()
    vault.connections.touch(stored[0])
    assert set(vault.connections.query()) == {LOCAL, *stored}
    assert len(vault.connections.infos(stored)) == len(stored)
    with pytest.raises(VaultUnavailable, match="disk is full"):
        Add(vault)("big", {"host": "x" * 1_000_000})
    ballast.unlink()
    stored.append(Add(vault)("afterwards"))
    vault.close()
    assert set(open_vault(f"sqlite:///{small_disk}/vault.db").connections.query()) == {LOCAL, *stored}
