"""Principals of a vault that two daemons share on PostgreSQL: each sees at once what the other changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connmgr.errors import IntegrityError, SecretLocked, StartupError, UnknownPrincipal, VaultUnavailable
from connmgr.secrets.principals import Access
from connmgr.secrets.vault_key import KeyFile
from connmgr.vault import Vault, open_database
from connmgr.vault.integrity import rotate
from tests.vault.conftest import KEY, Add
from tests.vault.postgres import Postgres

pytestmark = pytest.mark.needs("postgres")

PASSPHRASE = "alice's long passphrase"


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.dsn(postgres.create())


def assert_refused(url: str, reason: str) -> None:
    database = open_database(url)
    try:
        with pytest.raises(StartupError, match=reason):
            Vault(database, KEY)
    finally:
        database.close()


def test_users_of_one_daemon_are_users_of_the_other(url: str, open_vault: Callable[..., Vault]) -> None:
    one, other = open_vault(url).principals, open_vault(url).principals
    for_vault = one.seal("the vault's", Access())
    assert other.unseal(for_vault, Access()) == "the vault's"
    one.add_user(Access(), "alice", PASSPHRASE)
    with pytest.raises(SecretLocked):
        other.unseal(for_vault, Access())
    here, there = Access(), Access()
    one.unlock(here, "alice", PASSPHRASE)
    other.unlock(there, "alice", PASSPHRASE)
    assert other.unseal(one.seal("alice's", here), there) == "alice's"
    assert one.remove_user(here, "alice").readable == []
    assert other.status(there).user is None
    with pytest.raises(UnknownPrincipal):
        other.seal("s", there, ["alice"])


def test_an_edited_principal_is_refused(url: str, postgres: Postgres, open_vault: Callable[..., Vault]) -> None:
    import psycopg

    vault = open_vault(url)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE principal SET public_key = decode(repeat('41', 32), 'hex')")
    with pytest.raises(IntegrityError):
        vault.principals.seal("s", Access())
    assert_refused(url, "changed outside")


def test_rotation_by_one_daemon_stops_the_other(
    url: str, tmp_path: Path, vault: Vault, add: Add, open_vault: Callable[..., Vault]
) -> None:
    kept = vault.principals.seal("kept", Access())
    uuid = add("stored", {"password": kept})
    store = KeyFile(tmp_path / "data" / "vault.key")
    store.path.parent.mkdir(mode=0o700)
    store.write_next(KEY)
    store.promote()
    database = open_database(url)
    rotate(database, store)
    database.close()
    for use in (
        lambda: vault.principals.unseal(kept, Access()),
        lambda: vault.connections.get(uuid),
        lambda: add("late"),
        lambda: vault.categories.add("late", "97458c07-75c0-4f9d-a06e-92d8cdf67c40"),
    ):
        with pytest.raises(VaultUnavailable, match="key was rotated"):
            use()
    assert_refused(url, "does not belong")
    new = store.read()
    assert new is not None
    restarted = open_vault(url, new)
    assert restarted.principals.unseal(restarted.connections.get(uuid).data["password"], Access()) == "kept"
