"""Batches on both databases are atomic, and their records are tied and authenticated like single ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from connmgr.errors import SecretLocked, UnknownConnection
from connmgr.secrets.principals import Access
from connmgr.vault import Database, Vault, integrity
from connmgr.vault.batch import Addition, Batch, Change
from connmgr.vault.connection_rows import fingerprint
from connmgr.vault.connections import without_access
from tests.api.wire import NOBODY
from tests.vault.conftest import KEY, Add


@dataclass(frozen=True)
class Held:
    """Data of a connection without secrets that runs over ``references``."""

    sealed: dict[str, Any]
    references: list[str] = field(default_factory=list)
    parent: str | None = None
    folder: str | None = None

    @property
    def fingerprint(self) -> bytes:
        return fingerprint({**self.sealed, "over": self.references})

    def equals(self, stored: Mapping[str, Any]) -> bool:
        return stored == self.sealed

    def moved(self, ids: Mapping[str, str]) -> Held:
        moved = [ids.get(one, one) for one in self.references]
        return replace(self, references=moved, parent=ids.get(self.parent or "", self.parent))


def chain(length: int, category: tuple[str, ...] = ("Team", "Inner")) -> list[Addition]:
    made: list[Addition] = []
    for number in range(length):
        over = [made[-1].id] if made else []
        held = Held({"number": number}, over, over[0] if over else None)
        made.append(Addition(f"N{number}", "shellEnvironment", held, category))
    return made


def test_records_of_a_batch_are_authentic_and_in_place(vault: Vault, behind: Database, small_chunks: None) -> None:
    applied = vault.batches.apply(Batch([("Empty",)], chain(7)), without_access)
    assert integrity.faults(behind, KEY) == []
    last = vault.connections.infos([applied.added[-1][0]])[0]
    assert last.path == tuple(f"n{number}" for number in range(7))
    assert set(vault.connections.carriers_of([last.id], None)) == {id for id, _ in applied.added}
    assert vault.categories.infos([last.category])[0].path == ("all connections", "team", "inner")
    assert set(applied.made) == {("Empty",), ("Team",), ("Team", "Inner")}
    again = vault.batches.apply(Batch([("EMPTY",)], chain(7, ("team",))), without_access)
    assert (again.made, again.added) == ({}, [(id, False) for id, _ in applied.added])


def test_a_batch_that_fails_at_its_end_leaves_nothing(vault: Vault, add: Add) -> None:
    there = add("there")
    before = (vault.connections.query(), vault.categories.query())
    for fault in (Batch(removals=[NOBODY]), Batch(changes=[Change(NOBODY, name="x")])):
        batch = replace(fault, categories=[("made",)], additions=chain(3))
        with pytest.raises(UnknownConnection):
            vault.batches.apply(replace(batch, changes=[Change(there, name="new"), *batch.changes]), without_access)
        assert (vault.connections.query(), vault.categories.query()) == before
        assert vault.connections.get(there).name == "there"


def test_a_change_may_run_over_what_the_batch_folded(vault: Vault, add: Add) -> None:
    stored = vault.batches.apply(Batch(additions=chain(1)), without_access).added[0][0]
    changed = add("changed")
    (same,) = chain(1)
    applied = vault.batches.apply(
        Batch(additions=[same], changes=[Change(changed, content=Held({"host": "x"}, [same.id]))]), without_access
    )
    assert applied.added == [(stored, False)]
    assert vault.connections.with_carriers([changed]) == [changed, stored]
    assert applied.stale == [changed]


def test_a_change_in_a_batch_needs_the_secrets_that_go_over_the_connection(vault: Vault, add: Add) -> None:
    carrier = add("carrier")
    secret = vault.principals.seal("hunter2", Access())
    add("elevated", {"host": carrier, "password": secret}, parent=carrier)
    before = vault.connections.infos(vault.connections.query())
    batch = Batch(additions=chain(2), changes=[Change(carrier, content=Held({"host": "elsewhere"}))])
    with pytest.raises(SecretLocked, match="go over this connection"):
        vault.batches.apply(batch, without_access)
    assert vault.connections.infos(vault.connections.query()) == before
    asked: list[Any] = []
    vault.batches.apply(batch, asked.append)
    assert asked == [[secret]]
