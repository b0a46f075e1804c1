"""The vault on both of its databases."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import tests.compiled  # noqa: F401 - before a database is opened
from connmgr.secrets.passphrases import Cost, KeyDerivation
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import Database, Vault, connection_rows, open_database, principal_rows, schema
from connmgr.vault.connection_rows import fingerprint
from connmgr.vault.schema import connection
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.vault.people import copied, peopled
from tests.vault.postgres import Postgres
from tests.vault.renewed import KEY, Renewed

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgres"))]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests, in which each creates its own databases."""
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture
def daemons(postgres: Postgres, start_daemon: StartDaemon, tmp_path: Path) -> tuple[Daemon, Daemon]:
    """Two daemons on one database, with one key."""
    environment = {"CONNMGR_DATABASE_URL": postgres.dsn(postgres.create())}
    one = start_daemon(home=tmp_path / "one", environment=environment)
    key = (one.data_dir / "vault.key").read_bytes()
    data = tmp_path / "other" / "data" / "connmgr"
    data.mkdir(mode=0o700, parents=True)
    (data / "vault.key").touch(0o600)
    (data / "vault.key").write_bytes(key)
    return one, start_daemon(home=tmp_path / "other", environment=environment)


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of either kind: with a new vault if the test uses :func:`vault`, else empty."""
    made = "vault" in request.fixturenames
    if request.param == "sqlite":
        if made:
            shutil.copy(request.getfixturevalue("new_file"), tmp_path / "vault.db")
        return f"sqlite:///{tmp_path}/vault.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.dsn(request.getfixturevalue("renewed").database() if made else server.create())


@pytest.fixture(scope="session")
def renewed(postgres: Postgres) -> Renewed:
    """A new vault in PostgreSQL for each test."""
    return Renewed(postgres)


@pytest.fixture
def open_vault() -> Iterator[Callable[..., Vault]]:
    """A function that opens the vault at a URL with :data:`KEY` or another key; all are closed at the end."""
    opened: list[Vault] = []

    def open(url: str, key: VaultKey = KEY) -> Vault:
        opened.append(Vault(open_database(url), key))
        return opened[-1]

    yield open
    for vault in opened:
        vault.close()


@pytest.fixture
def vault(url: str, open_vault: Callable[..., Vault]) -> Vault:
    """A new vault."""
    return open_vault(url)


@dataclass(frozen=True)
class Add:
    """Adds connections of no particular type to a vault."""

    vault: Vault

    def __call__(self, name: str, data: dict[str, Any] | None = None, type: str = "ssh", **options: Any) -> str:
        content = {"host": name} if data is None else data
        options = {"same": lambda _: True, "fingerprint": fingerprint(content), **options}
        return self.vault.connections.add(name, type, content, **options)[0]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements take few values, so that few connections need several statements."""
    monkeypatch.setattr("connmgr.vault.schema._CHUNK_VALUES", 3)


@pytest.fixture
def add(vault: Vault) -> Add:
    return Add(vault)


@pytest.fixture
def behind(url: str, vault: Vault) -> Iterator[Database]:
    """The vault's database, for direct changes."""
    database = open_database(url)
    yield database
    database.close()


def downgrade(url: str, key: VaultKey | None = KEY, revision: str = "0001") -> None:
    """Let :func:`make_older` change the vault at ``url``, by a database of its own: an open one knows its tables."""
    database = open_database(url)
    try:
        database.write(lambda tx: make_older(tx, key, revision))
    finally:
        database.close()


def make_older(tx: sa.Connection, key: VaultKey | None = KEY, revision: str = "0001") -> None:
    """Downgrade a vault to an older schema; without the ``key`` as far as possible.

    In 0002 connections are not tied to what they run over, in 0001 categories have no codes either.
    """
    if key is not None:
        macs = principal_rows._macs(key, principal_rows.load(tx, key))
        code = principal_rows._mac_of_all(key, macs, principal_rows.FORMATS[revision])
        principal_rows.put_meta(tx, principal_rows.PRINCIPALS_MAC, code)
        rows = tx.execute(sa.select(connection)).mappings().all()
        older = [
            {**row, "mac": connection_rows.mac(row, key, connection_rows.BEFORE_WAYS)}
            for row in rows
            if connection_rows.intact(row, key)
        ]
        connection_rows.update(tx, older)
    if tx.dialect.name == "postgresql":
        tx.execute(sa.text("DROP INDEX ix_connection_query, ix_connection_long"))
    else:
        tx.execute(sa.text("DROP INDEX ix_connection_query"))
        tx.execute(sa.text("CREATE INDEX ix_connection_query ON connection (path, id, depth, type, category)"))
    tx.execute(sa.text("ALTER TABLE connection DROP COLUMN labels"))
    for table in ("schedule", "run_output", "run_target", "run_batch", "run", "daemon"):
        tx.execute(sa.text(f"DROP TABLE {table}"))
    tx.execute(sa.text("DROP TABLE fact"))
    tx.execute(sa.text("DROP TABLE document"))
    tx.execute(sa.text("DROP TABLE job"))
    tx.execute(sa.text("DROP TABLE commit_mark"))
    tx.execute(sa.text("ALTER TABLE connection DROP COLUMN way"))
    if revision == "0001":
        tx.execute(sa.text("ALTER TABLE category DROP COLUMN mac"))
    tx.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{revision}'"))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a vault with alice and bob."""
    return peopled(tmp_path_factory.mktemp("people"))


@pytest.fixture
def directory(template: Path, tmp_path: Path) -> Path:
    """A copy of that directory for one test."""
    return copied(template, tmp_path)


@pytest.fixture
def derivations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Cost]]:
    """The derivations requested so far."""
    asked: list[tuple[str, Cost]] = []
    derive = KeyDerivation.derive

    def record(self: KeyDerivation, passphrase: str, salt: bytes, cost: Cost, **options: bool) -> bytes:
        asked.append((passphrase, cost))
        return derive(self, passphrase, salt, cost, **options)

    monkeypatch.setattr(KeyDerivation, "derive", record)
    return asked
