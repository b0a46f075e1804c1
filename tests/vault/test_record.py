"""Records changed in the database are refused, whatever the change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from connmgr.errors import IntegrityError
from connmgr.vault import Connection, Database, Vault
from connmgr.vault.connection_rows import AUTHENTICATED, fingerprint
from connmgr.vault.names import ALL_CONNECTIONS, LOCAL
from connmgr.vault.schema import connection
from tests.vault.conftest import Add


def change(database: Database, id: str, **values: Any) -> None:
    database.write(lambda tx: tx.execute(connection.update().where(connection.c.id == id).values(**values)))


def stored(database: Database, id: str) -> dict[str, Any]:
    return database.read(
        lambda tx: dict(tx.execute(sa.select(connection).where(connection.c.id == id)).mappings().one())
    )


def test_every_changed_byte_is_refused(vault: Vault, add: Add, behind: Database) -> None:
    id = add("host", {"host": "h"})
    row = stored(behind, id)
    for column in ("data", "type", "name", "path", "mac"):
        for at in range(len(row[column])):
            part = row[column][at : at + 1]
            other = bytes([part[0] ^ 1]) if isinstance(part, bytes) else chr(ord(part) ^ 1)
            change(behind, id, **{column: row[column][:at] + other + row[column][at + 1 :]})
            with pytest.raises(IntegrityError, match=id):
                vault.connections.get(id)
        change(behind, id, **{column: row[column]})
    assert vault.connections.get(id).data == {"host": "h"}


def test_records_exchanged_between_rows_are_refused(vault: Vault, add: Add, behind: Database) -> None:
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    parent = add("parent")
    test, production = add("test"), add("production", {"x": 1}, type="other", category=team, parent=parent)
    rows = {id: stored(behind, id) for id in (test, production)}
    for column in (*AUTHENTICATED[1:], "mac"):
        for id, other in ((test, production), (production, test)):
            change(behind, id, **{column: rows[other][column]})
        for id in (test, production):
            with pytest.raises(IntegrityError, match=id) as caught:
                vault.connections.get(id)
            assert caught.value.details == {"connection": id}
            change(behind, id, **{column: rows[id][column]})
    whole = {name: value for name, value in rows[production].items() if name != "id"}
    change(behind, test, **whole)
    with pytest.raises(IntegrityError, match=test):
        vault.connections.get(test)


def test_one_bad_record_fails_the_whole_request(vault: Vault, add: Add, behind: Database) -> None:
    good, bad = add("good"), add("bad")
    change(behind, bad, name="worse")
    with pytest.raises(IntegrityError, match=bad):
        vault.connections.infos([good, bad])
    assert vault.connections.get(good).name == "good"


def test_a_record_that_was_sound_is_refused_once_any_of_its_columns_was_changed(
    vault: Vault, add: Add, behind: Database
) -> None:
    sound, changed = add("sound", {"host": "s"}), add("changed", {"host": "h"})
    team, row = vault.categories.add("Team", ALL_CONNECTIONS), stored(behind, changed)
    seen = vault.connections.each([sound, changed])
    moved = {"name": "x", "path": "x", "type": "x", "category": team, "way": "x", "depth": 2}
    others = {"data": '{"host":"evil"}', "mac": b"x", "state": "[]", "cache": "{", **moved}
    for column, other in others.items():
        change(behind, changed, **{column: other})
        found = vault.connections.each([sound, changed])
        assert isinstance(found[changed], IntegrityError), column
        assert found[sound] == seen[sound]
        change(behind, changed, **{column: row[column]})
        assert vault.connections.each([sound, changed]) == seen


def test_records_that_are_asked_for_again_are_as_they_are_stored(vault: Vault, add: Add) -> None:
    id, other = add("before"), add("other")
    vault.connections.each([id, other])
    vault.connections.set_state(id, {"seen": 1})
    found = vault.connections.each([id, other])[id]
    assert isinstance(found, Connection)
    assert found == vault.connections.get(id)
    assert found.state == {"seen": 1}
    vault.connections.remove([other])
    assert list(vault.connections.each([id, other])) == [id]


def test_a_bad_record_can_only_be_removed(vault: Vault, add: Add, behind: Database) -> None:
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    bad = add("bad", {"host": "h"}, category=team)
    below = add("below", {"host": bad}, parent=bad)
    forged = {"data": '{"host":"evil"}', "fingerprint": fingerprint({"host": "evil"})}
    change(behind, bad, **forged)
    attempts: list[Callable[[], Any]] = [
        lambda: vault.connections.update(bad, name="good"),
        lambda: vault.connections.update(bad, data={"host": "h"}, fingerprint=fingerprint({"host": "h"})),
        lambda: vault.categories.remove([team]),
    ]
    for attempt in attempts:
        with pytest.raises(IntegrityError, match=bad):
            attempt()
    assert stored(behind, bad)["name"] == "bad"
    assert add("new", {"host": "evil"}) != bad
    assert set(vault.connections.remove([bad]).connections) == {bad, below}


def test_renaming_does_not_repair_a_bad_record_below(vault: Vault, add: Add, behind: Database) -> None:
    host = add("host")
    below = add("below", {"host": host}, parent=host)
    change(behind, below, data="{}")
    with pytest.raises(IntegrityError, match=below):
        vault.connections.update(host, name="new")
    assert vault.connections.get(host).name == "host"
    with pytest.raises(IntegrityError, match=below):
        vault.connections.get(below)


@pytest.mark.parametrize(
    "column", ["data", "mac", "state", "depth", "cache", "created", "last_used", "last_modified", "name"]
)
@pytest.mark.parametrize("value", ["'x'", "x'ff'", "cast(x'ff' AS text)", "9e99", f"'{'[' * 100_000}'"])
def test_values_of_another_type_are_refused(
    tmp_path: Path, new_file: Path, open_vault: Callable[..., Vault], column: str, value: str
) -> None:
    shutil.copy(new_file, tmp_path / "vault.db")
    vault = open_vault(f"sqlite:///{tmp_path}/vault.db")
    # PostgreSQL would accept none of them.
    vault.database.write(lambda tx: tx.execute(sa.text(f"UPDATE connection SET {column} = {value}")))
    with pytest.raises(IntegrityError):
        vault.connections.get(LOCAL)


def test_the_state_of_a_connection_is_not_authenticated(vault: Vault, add: Add, behind: Database) -> None:
    id = add("host")
    change(behind, id, state='{"osType": "linux"}')
    assert vault.connections.get(id).state == {"osType": "linux"}
