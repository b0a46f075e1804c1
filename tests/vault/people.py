"""A vault with users for the tests of principals, made once."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from connmgr.secrets.principals import Access
from connmgr.secrets.vault_key import load
from connmgr.vault import Vault, open_database
from connmgr.vault.connection_rows import fingerprint

PASSPHRASES = {"alice": "alice's long passphrase", "bob": "bob's long passphrase"}


@contextmanager
def opened(directory: Path) -> Iterator[Vault]:
    """Open the vault in ``directory`` as the daemon does."""
    database = open_database(f"sqlite:///{directory / 'vault.db'}")
    key = load(directory / "vault.key", create=database.empty, verifier=database.key_verifier)
    vault = Vault(database, key)
    try:
        yield vault
    finally:
        vault.close()


def new_directory(parent: Path) -> Path:
    """Create an empty data directory."""
    directory = parent / "data"
    directory.mkdir(mode=0o700)
    return directory


def peopled(parent: Path) -> Path:
    """Create a vault with alice and bob."""
    directory = new_directory(parent)
    with opened(directory) as vault:
        access = Access()
        vault.principals.add_user(access, "alice", PASSPHRASES["alice"])
        vault.principals.unlock(access, "alice", PASSPHRASES["alice"])
        vault.principals.add_user(access, "bob", PASSPHRASES["bob"])
    return directory


def copied(template: Path, parent: Path) -> Path:
    """Copy a closed vault."""
    return Path(shutil.copytree(template, parent / "data"))


def add_connection(vault: Vault, name: str, data: dict[str, Any]) -> str:
    """Store a connection that equals no other."""
    uuid, _ = vault.connections.add(name, "ssh", data, fingerprint=fingerprint({"name": name}), same=lambda _: False)
    return uuid


def edit(directory: Path, statement: str, *values: Any) -> None:
    """Change the database file directly."""
    with closing(sqlite3.connect(directory / "vault.db")) as connection, connection:
        changed = connection.execute(statement, values).rowcount
    assert changed > 0, f"changed nothing: {statement}"


def value_of(directory: Path, query: str, *values: Any) -> Any:
    """Read one value from the database file."""
    with closing(sqlite3.connect(directory / "vault.db")) as connection:
        return connection.execute(query, values).fetchone()[0]
