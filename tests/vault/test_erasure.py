"""Removed or overwritten secrets are not in the files of a running vault."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from connmgr.vault import Vault
from connmgr.vault.backends import SQLite
from connmgr.vault.connection_rows import fingerprint
from connmgr.vault.documents import Document, counted
from connmgr.vault.names import ALL_CONNECTIONS
from tests.vault.conftest import Add

SEALED = "sealed-text-of-a-secret-" * 400
"""Longer than a page, so that its removal frees some."""


@pytest.fixture
def vault(tmp_path: Path, open_vault: Callable[..., Vault]) -> Vault:
    return open_vault(f"sqlite:///{tmp_path}/vault.db")


def remove(vault: Vault, id: str) -> None:
    vault.connections.remove([id])


def overwrite(vault: Vault, id: str) -> None:
    vault.connections.update(id, data={}, fingerprint=fingerprint({}))


def remove_with_category(vault: Vault, id: str) -> None:
    vault.categories.remove([vault.connections.get(id).category], contents=True)


def holding(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir() if SEALED[:48].encode() in file.read_bytes()}


@pytest.mark.parametrize("erase", [remove, overwrite, remove_with_category])
def test_a_secret_that_is_removed_leaves_the_files(
    vault: Vault, add: Add, tmp_path: Path, erase: Callable[[Vault, str], None]
) -> None:
    id = add("host", {"password": SEALED}, category=vault.categories.add("Going", ALL_CONNECTIONS))
    assert holding(tmp_path)
    erase(vault, id)
    assert holding(tmp_path) == set(), "a removed secret stays in the vault's files while the daemon runs"


def _with_sudo_password(vault: Vault, of: str) -> None:
    vault.connections.sudo_passwords.store(of, {"secret": SEALED})


def _signer(vault: Vault) -> Document:
    signer = Document(key="ca", body={"key": SEALED})
    assert vault.signers.add(signer)
    return signer


def _change_signer(vault: Vault, change: Callable[[Document], Document | None]) -> None:
    (signer,) = vault.signers.all()
    vault.signers.change(signer.id, change)


DOCUMENTS: dict[str, tuple[Callable[[Vault, str], object], Callable[[Vault, str], object]]] = {
    "a password for sudo is replaced": (
        _with_sudo_password,
        lambda vault, of: vault.connections.sudo_passwords.store(of, {"secret": "another"}),
    ),
    "a password for sudo is removed": (
        _with_sudo_password,
        lambda vault, of: vault.connections.sudo_passwords.store(of, None),
    ),
    "its category is removed": (_with_sudo_password, lambda vault, of: vault.categories.remove([of])),
    "a signer gets another key": (
        lambda vault, _: _signer(vault),
        lambda vault, _: _change_signer(vault, lambda signer: replace(signer, body={"key": "another"})),
    ),
    "a signer is removed by a change": (
        lambda vault, _: _signer(vault),
        lambda vault, _: _change_signer(vault, lambda _: None),
    ),
    "a signer is removed": (
        lambda vault, _: _signer(vault),
        lambda vault, _: vault.signers.remove([signer.id for signer in vault.signers.all()]),
    ),
}


@pytest.mark.parametrize("how", DOCUMENTS)
def test_a_document_that_is_replaced_or_removed_leaves_the_files(vault: Vault, tmp_path: Path, how: str) -> None:
    stores, erases = DOCUMENTS[how]
    category = vault.categories.add("Going", ALL_CONNECTIONS)
    stores(vault, category)
    assert holding(tmp_path)
    erases(vault, category)
    assert holding(tmp_path) == set()


def test_counting_erases_nothing(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = _signer(vault)
    vault.signers.change(signer.id, lambda document: replace(document, body={}))
    scrubs: list[None] = []
    monkeypatch.setattr(SQLite, "scrub", lambda _: not scrubs.append(None))
    vault.signers.change(signer.id, lambda document: counted(document, used=1))
    assert scrubs == []
    vault.signers.change(signer.id, lambda document: replace(document, body={"key": "another"}))
    assert scrubs == [None]


def test_pages_kept_for_a_reader_are_erased_by_the_next_change(vault: Vault, add: Add, tmp_path: Path) -> None:
    id = add("host", {"password": SEALED})
    with closing(sqlite3.connect(tmp_path / "vault.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM connection").fetchone() == (2,)
        vault.connections.remove([id])
        assert holding(tmp_path)
        reader.execute("COMMIT")
    vault.categories.add("any change", ALL_CONNECTIONS)
    assert holding(tmp_path) == set(), "what could not be erased at once is forgotten"
