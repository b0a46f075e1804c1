"""Admission to a running shell is cached briefly, and never longer than it is true in this daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from connmgr.errors import IntegrityError, SecretLocked
from connmgr.links import link
from connmgr.links.link import Admission
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from tests.vault.people import PASSPHRASES, new_directory, opened


@pytest.fixture
def vault(directory: Path) -> Iterator[Vault]:
    with opened(directory) as vault:
        yield vault


@pytest.fixture
def look_ups(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows with each query of who may open secrets."""
    made: list[Any] = []
    entitled = vault.principals.entitled

    def counted(*arguments: Any) -> Access:
        made.append(arguments)
        return entitled(*arguments)

    monkeypatch.setattr(vault.principals, "entitled", counted)
    return made


def guarded(vault: Vault, secrets: list[dict[str, Any]]) -> Admission:
    return Admission(vault.principals, secrets, lambda _: True)


def unlocked(vault: Vault, name: str) -> Access:
    access = Access()
    vault.principals.unlock(access, name, PASSPHRASES[name])
    return access


def test_the_database_is_asked_once_a_moment(
    vault: Vault, look_ups: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = unlocked(vault, "alice")
    door = guarded(vault, [vault.principals.seal("s", alice)])
    for _ in range(3):
        door.check(alice)
    assert len(look_ups) == 1
    later = time.monotonic() + link.ADMITTED_SECONDS
    monkeypatch.setattr(link.time, "monotonic", lambda: later)
    door.check(alice)
    assert len(look_ups) == 2


def test_a_link_without_secrets_asks_for_no_admission(vault: Vault, look_ups: list[Any]) -> None:
    guarded(vault, []).check(Access())
    assert not look_ups


def test_a_lock_counts_at_once(vault: Vault) -> None:
    alice = unlocked(vault, "alice")
    door = guarded(vault, [vault.principals.seal("s", alice)])
    door.check(alice)
    alice.lock()
    with pytest.raises(SecretLocked):
        door.check(alice)


def test_admission_is_decided_for_each_caller(vault: Vault) -> None:
    alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
    door = guarded(vault, [vault.principals.seal("s", alice)])
    door.check(alice)
    for other in (bob, Access()):
        with pytest.raises(SecretLocked):
            door.check(other)


def test_a_removed_user_is_out_at_once(vault: Vault) -> None:
    alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
    door = guarded(vault, [vault.principals.seal("s", alice)])
    door.check(alice)
    vault.principals.remove_user(bob, "alice", force=True)
    with pytest.raises(SecretLocked):
        door.check(alice)


def test_the_first_user_shuts_out_who_unlocked_none(tmp_path: Path, opened_empty: Callable[[Path], Vault]) -> None:
    vault = opened_empty(tmp_path)
    door = guarded(vault, [vault.principals.seal("s", Access())])
    door.check(Access())
    vault.principals.add_user(Access(), "alice", PASSPHRASES["alice"])
    with pytest.raises(SecretLocked):
        door.check(Access())


def test_a_removal_by_another_daemon_counts_within_a_moment(
    vault: Vault, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = unlocked(vault, "alice")
    door = guarded(vault, [vault.principals.seal("s", alice)])
    door.check(alice)
    with opened(directory) as other:
        other.principals.remove_user(unlocked(other, "bob"), "alice", force=True)
    later = time.monotonic() + link.ADMITTED_SECONDS
    monkeypatch.setattr(link.time, "monotonic", lambda: later)
    with pytest.raises(SecretLocked):
        door.check(alice)


def test_a_refusal_is_not_remembered(vault: Vault) -> None:
    alice = Access()
    sealed = vault.principals.seal("s", Access(), ["alice"])
    door = guarded(vault, [sealed])
    with pytest.raises(SecretLocked):
        door.check(alice)
    vault.principals.unlock(alice, "alice", PASSPHRASES["alice"])
    door.check(alice)
    changed = {**sealed, "secret": {**sealed["secret"], "type": "open"}}
    for _ in range(2):
        with pytest.raises(IntegrityError):
            guarded(vault, [changed]).check(alice)


@pytest.fixture
def opened_empty() -> Iterator[Callable[[Path], Vault]]:
    with ExitStack() as stack:
        yield lambda parent: stack.enter_context(opened(new_directory(parent)))
