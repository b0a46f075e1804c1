"""Categories changed in the database are refused, and migrations give older vaults their authentication codes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from connmgr.errors import IntegrityError, StartupError
from connmgr.vault import Database, Vault, integrity, open_database
from connmgr.vault.backup import backup, restore_into
from connmgr.vault.names import ALL_CONNECTIONS, DEFAULT
from connmgr.vault.schema import category
from tests.vault.conftest import KEY, Add, downgrade
from tests.vault.postgres import Postgres

OpenVault = Callable[..., Vault]
PLACE = ("name", "segment", "path")


def change(database: Database, id: str, **values: Any) -> None:
    database.write(lambda tx: tx.execute(category.update().where(category.c.id == id).values(**values)))


def stored(database: Database, id: str) -> dict[str, Any]:
    return database.read(lambda tx: dict(tx.execute(sa.select(category).where(category.c.id == id)).mappings().one()))


def exchange(database: Database, one: str, other: str) -> None:
    """Swap the names of two categories."""
    places = [{column: stored(database, id)[column] for column in PLACE} for id in (one, other)]
    change(database, one, segment="out of the way")
    change(database, other, **places[0])
    change(database, one, **places[1])


def test_exchanged_names_lead_nowhere(vault: Vault, add: Add, behind: Database) -> None:
    test, production = (vault.categories.add(name, ALL_CONNECTIONS) for name in ("test", "production"))
    in_test = add("web", category=test)
    exchange(behind, test, production)
    attempts: list[Callable[[], Any]] = [
        lambda: vault.categories.infos([test]),
        lambda: vault.categories.query("production"),
        lambda: vault.categories.query("*"),
        lambda: vault.categories.add("below", test),
        lambda: vault.categories.add("production", ALL_CONNECTIONS),
        lambda: vault.connections.query("production"),
        lambda: vault.connections.query("p*", "web"),
    ]
    for attempt in attempts:
        with pytest.raises(IntegrityError, match=f"{test}|{production}"):
            attempt()
    assert len(integrity.faults(behind, KEY)) == 2
    assert vault.connections.get(in_test).category == test
    assert vault.categories.query("default") == [DEFAULT]
    exchange(behind, test, production)
    assert vault.connections.query("test") == [in_test]
    assert integrity.faults(behind, KEY) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((column, "other") for column in (*PLACE, "config")),
        ("parent", DEFAULT),
        ("parent", None),
        ("depth", 3),
        ("config", '{"other": 1}'),
        ("mac", b"0" * 32),
        ("mac", b""),
    ],
)
def test_every_changed_column_is_refused(vault: Vault, behind: Database, column: str, value: object) -> None:
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    change(behind, team, **{column: value})
    with pytest.raises(IntegrityError, match=team) as caught:
        vault.categories.infos([team])
    assert caught.value.details == {"category": team}


@pytest.mark.parametrize("column", ["name", "segment", "path", "depth", "config", "mac", "created"])
@pytest.mark.parametrize("value", ["'nope'", "x'ff'", "cast(x'ff' AS text)", "9e99"])
def test_values_of_another_type_are_refused(
    tmp_path: Path, new_file: Path, open_vault: OpenVault, column: str, value: str
) -> None:
    shutil.copy(new_file, tmp_path / "vault.db")
    vault = open_vault(f"sqlite:///{tmp_path}/vault.db")
    # PostgreSQL would accept none of them.
    statement = sa.text(f"UPDATE category SET {column} = {value} WHERE id = '{DEFAULT}'")
    vault.database.write(lambda tx: tx.execute(statement))
    with pytest.raises(IntegrityError):
        vault.categories.infos([DEFAULT])


def test_a_changed_category_can_be_removed_and_what_it_held_stays(vault: Vault, add: Add, behind: Database) -> None:
    bad, elsewhere = (vault.categories.add(name, ALL_CONNECTIONS) for name in ("bad", "elsewhere"))
    below = vault.categories.add("below", bad)
    inside, deeper = add("a", category=bad), add("b", category=below)
    change(behind, bad, parent=elsewhere)
    with pytest.raises(IntegrityError, match=bad):
        vault.categories.remove([elsewhere], children=True, contents=True)
    assert vault.categories.remove([bad]).connections == []
    assert vault.categories.infos([below])[0].path == ("all connections", "below")
    assert [found.category for found in vault.connections.infos([inside, deeper])] == [DEFAULT, below]
    assert integrity.faults(behind, KEY) == []


@pytest.fixture
def older(url: str, vault: Vault) -> Vault:
    """A closed vault of the schema before categories had codes, with a connection in a category."""
    Add(vault)("web", category=vault.categories.add("Team", ALL_CONNECTIONS))
    vault.close()
    downgrade(url)
    return vault


def assert_whole(vault: Vault) -> None:
    (web,) = vault.connections.query("team")
    assert vault.connections.get(web).name == "web"
    assert len(vault.categories.infos(vault.categories.query())) == 3
    assert integrity.faults(vault.database, KEY) == []


def test_an_older_vault_gets_its_codes_at_the_start(url: str, older: Vault, open_vault: OpenVault) -> None:
    database = open_database(url)
    assert integrity.faults(database, KEY) == [], "doctor looks at it before"
    database.close()
    for _ in range(2):
        assert_whole(open_vault(url))


def test_a_backup_of_an_older_vault_is_restored_as_one(
    url: str, older: Vault, tmp_path: Path, open_vault: OpenVault, request: pytest.FixtureRequest
) -> None:
    database = open_database(url)
    backup(database, tmp_path / "backup")
    database.close()
    empty = f"sqlite:///{tmp_path}/other.db"
    if url.startswith("postgresql"):
        server: Postgres = request.getfixturevalue("postgres")
        empty = server.dsn(server.create())
    database = open_database(empty)
    restore_into(tmp_path / "backup", database)
    database.close()
    assert_whole(open_vault(empty))


def test_nobody_without_the_key_gets_codes_for_what_they_wrote(url: str, vault: Vault, open_vault: OpenVault) -> None:
    vault.close()
    downgrade(url, None)
    with pytest.raises(StartupError, match="changed outside of connmgr"):
        open_vault(url)
