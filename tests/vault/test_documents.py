"""Documents: found by id and key, changed atomically, refused after changes outside of connmgr."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from connmgr.errors import IntegrityError
from connmgr.secrets.vault_key import KeyFile
from connmgr.vault import Vault, integrity, open_database
from connmgr.vault.documents import Document, counted
from connmgr.vault.integrity import rotate
from connmgr.vault.schema import document as table
from connmgr.vault.schema import now
from tests.vault.conftest import KEY
from tests.vault.people import new_directory, opened


def new(key: str = "a") -> Document:
    return Document(key=key, body={"name": "ü", "list": [1, None]}, expires=now() + timedelta(hours=1))


def test_a_document_is_read_as_it_was_stored(vault: Vault) -> None:
    stored = new()
    assert vault.tokens.add(stored)
    assert vault.tokens.get(stored.id) == vault.tokens.by_key("a") == stored
    assert vault.tokens.all() == [stored]
    assert vault.approvals.get(stored.id) is None, "of another kind"


def test_a_key_is_taken_once_and_of_its_kind_alone(vault: Vault) -> None:
    first = new()
    assert vault.tokens.add(first)
    assert not vault.tokens.add(new())
    assert vault.approvals.add(new())
    assert not vault.tokens.add(new("b"), most=1)
    assert vault.tokens.all() == [first]


def test_a_change_replaces_or_removes(vault: Vault) -> None:
    stored = new()
    vault.tokens.add(stored)
    changed = vault.tokens.change(stored.id, lambda one: counted(replace(one, body={"revoked": True}), used=3))
    assert changed == vault.tokens.get(stored.id)
    assert changed is not None
    assert (changed.body, changed.counts) == ({"revoked": True}, {"used": 3})
    assert vault.tokens.change(stored.id, lambda _: None) is None
    assert vault.tokens.change(stored.id, lambda one: one) is None
    assert vault.tokens.all() == []


@pytest.mark.parametrize(
    "edit",
    [{"body": '{"name":"root"}'}, {"expires": None}, {"key": "b"}, {"kind": "approval"}, {"id": "other"}, {"mac": b""}],
    ids=lambda edit: next(iter(edit)),
)
def test_a_document_that_was_changed_outside_is_refused(vault: Vault, edit: dict[str, object]) -> None:
    vault.tokens.add(new())
    vault.database.write(lambda tx: tx.execute(table.update().values(edit)))
    kind = vault.approvals if "kind" in edit else vault.tokens
    with pytest.raises(IntegrityError, match="outside of connmgr"):
        kind.all()
    with pytest.raises(IntegrityError, match="outside of connmgr"):
        kind.by_key("b" if "key" in edit else "a")
    assert len(integrity.faults(vault.database, KEY)) == 1


@pytest.mark.parametrize("counts", ["", "{", "3"])
def test_counts_are_not_authenticated(vault: Vault, counts: str) -> None:
    stored = new()
    vault.tokens.add(counted(stored, used=7))
    vault.database.write(lambda tx: tx.execute(table.update().values(counts=counts)))
    assert vault.tokens.get(stored.id) == stored


def test_documents_survive_a_rotation_of_the_key(tmp_path: Path) -> None:
    directory, stored = new_directory(tmp_path), new()
    with opened(directory) as vault:
        vault.tokens.add(stored)
        lasting = vault.principals.lasting_key(b"test")
    database = open_database(f"sqlite:///{directory / 'vault.db'}")
    rotate(database, KeyFile(directory / "vault.key"))
    database.close()
    with opened(directory) as vault:
        assert vault.tokens.all() == [stored]
        assert vault.principals.lasting_key(b"test") == lasting
        assert vault.principals.lasting_key(b"other") != lasting


def test_a_rotation_stops_at_a_document_that_was_changed(tmp_path: Path) -> None:
    directory = new_directory(tmp_path)
    with opened(directory) as vault:
        vault.tokens.add(new())
        vault.database.write(lambda tx: tx.execute(sa.update(table).values(body="{}")))
    database = open_database(f"sqlite:///{directory / 'vault.db'}")
    with pytest.raises(IntegrityError):
        rotate(database, KeyFile(directory / "vault.key"))
    database.close()
