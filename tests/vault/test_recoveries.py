"""Recovery keys in the vault: the way back when everything else is lost, and what they must not open."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.errors import (
    InvalidRequest,
    LastPrincipal,
    SecretLocked,
    UnknownRecovery,
    UnlockFailed,
    VaultLocked,
    WrongShares,
)
from connmgr.secrets.passphrases import Guesser
from connmgr.secrets.principals import Access
from connmgr.secrets.recovery import RecoveryWords, new_words
from connmgr.vault import Vault
from tests.vault.people import PASSPHRASES, add_connection, edit, new_directory, opened, value_of

NEW = "a passphrase after the loss"
ANYBODY = Guesser()


@pytest.fixture
def vault(directory: Path) -> Iterator[Vault]:
    with opened(directory) as vault:
        yield vault


def unlocked(vault: Vault, user: str, passphrase: str | None = None) -> Access:
    access = Access()
    vault.principals.unlock(access, user, passphrase or PASSPHRASES[user])
    return access


def created(vault: Vault, user: str, threshold: int = 1, shares: int = 1) -> RecoveryWords:
    return vault.recoveries.create(user, PASSPHRASES[user], shares=shares, threshold=threshold, guesser=ANYBODY)


def test_shares_open_everything_after_all_else_is_lost(directory: Path, tmp_path: Path) -> None:
    with opened(directory) as vault:
        alice = unlocked(vault, "alice")
        before = vault.principals.seal("sealed before", alice)
        id = add_connection(vault, "web", {"host": "web", "password": vault.principals.seal("of a host", alice)})
        words = created(vault, "alice", 3, 5)
        after = vault.principals.seal("sealed after", alice)
    # The daemon and its sessions, the passphrase, the other user's, and the first machine are gone: what is left are
    # a copy of the data directory, and three papers.
    left = Path(shutil.copytree(directory, tmp_path / "restored"))
    shutil.rmtree(directory)
    with opened(left) as vault:
        locked = Access()
        with pytest.raises(SecretLocked):
            vault.principals.unseal(before, locked)
        used = vault.recoveries.use([words.shares[4], words.shares[0], words.shares[2]], NEW)
        assert (used.user, used.id) == ("alice", words.id)
        with pytest.raises(SecretLocked):
            vault.principals.unseal(before, locked)
        with pytest.raises(UnlockFailed):
            unlocked(vault, "alice")
        alice = unlocked(vault, "alice", NEW)
        data = vault.connections.get(id).data
        values = [vault.principals.unseal(each, alice) for each in (before, after, data["password"])]
        assert values == ["sealed before", "sealed after", "of a host"]


def test_a_key_is_noted_as_used_until_it_is_rotated(vault: Vault) -> None:
    words = created(vault, "alice")
    assert vault.recoveries.used_for("alice") == []
    assert vault.recoveries.check(list(words.shares)).used is None
    vault.recoveries.use(list(words.shares), NEW)
    [used] = vault.recoveries.used_for("alice")
    assert used.used is not None
    assert vault.recoveries.used_for("bob") == []
    user, other = vault.recoveries.rotate(words.id, NEW, ANYBODY)
    assert user == "alice"
    assert vault.recoveries.used_for("alice") == []
    with pytest.raises(WrongShares, match=f"no recovery key {words.id}.*rotated or revoked"):
        vault.recoveries.use(list(words.shares), "yet another passphrase")
    vault.recoveries.use(list(other.shares), "yet another passphrase")
    unlocked(vault, "alice", "yet another passphrase")


def test_a_key_opens_its_user_alone_and_takes_that_users_passphrase(vault: Vault) -> None:
    with pytest.raises(UnlockFailed):
        vault.recoveries.create("bob", PASSPHRASES["alice"], shares=1, threshold=1, guesser=ANYBODY)
    with pytest.raises(UnlockFailed):
        vault.recoveries.create("vault", "whatever it is", shares=1, threshold=1, guesser=ANYBODY)
    words = created(vault, "alice")
    with pytest.raises(UnlockFailed):
        vault.recoveries.rotate(words.id, PASSPHRASES["bob"], ANYBODY)
    vault.recoveries.use(list(words.shares), NEW)
    unlocked(vault, "bob")
    with pytest.raises(UnlockFailed):
        unlocked(vault, "bob", NEW)


def test_a_weak_passphrase_and_foreign_words_change_nothing(vault: Vault) -> None:
    words = created(vault, "alice")
    with pytest.raises(InvalidRequest):
        vault.recoveries.use(list(words.shares), "short")
    with pytest.raises(WrongShares, match="another vault"):
        vault.recoveries.use(list(new_words(1, 1).shares), NEW)
    unlocked(vault, "alice")
    assert vault.recoveries.used_for("alice") == []


def test_revoking_needs_an_unlocked_user_and_ends_the_words(vault: Vault) -> None:
    words = created(vault, "alice")
    with pytest.raises(VaultLocked):
        vault.recoveries.revoke(words.id, Access())
    with pytest.raises(UnknownRecovery):
        vault.recoveries.revoke("ffff0", unlocked(vault, "alice"))
    assert vault.recoveries.revoke(words.id, unlocked(vault, "bob")) == "alice"
    assert vault.recoveries.all() == []
    with pytest.raises(WrongShares):
        vault.recoveries.check(list(words.shares))


def test_removing_a_user_never_loses_what_a_recovery_key_opens(vault: Vault) -> None:
    alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
    id = add_connection(vault, "web", {"host": "web", "password": vault.principals.seal("of a host", alice)})
    words = created(vault, "alice")
    for force in (False, True):
        with pytest.raises(LastPrincipal, match=f"recovery key {words.id} sets a new one") as refusal:
            vault.principals.remove_user(bob, "alice", force=force)
        assert refusal.value.details == {"connections": [id], "recoveries": [words.id]}
    vault.recoveries.use(list(words.shares), NEW)
    removed = vault.principals.remove_user(bob, "alice", passphrase=NEW)
    assert (removed.resealed, removed.heir, removed.lost) == ([id], "bob", [])
    assert vault.principals.unseal(vault.connections.get(id).data["password"], bob) == "of a host"
    assert vault.recoveries.all() == []
    # Another user of the same name is not opened by the words of the one before.
    vault.principals.add_user(bob, "alice", PASSPHRASES["alice"])
    with pytest.raises(WrongShares):
        vault.recoveries.use(list(words.shares), "yet another passphrase")


def test_what_is_given_up_is_lost_only_after_both_steps(vault: Vault) -> None:
    alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
    id = add_connection(vault, "web", {"host": "web", "password": vault.principals.seal("of a host", alice)})
    words = created(vault, "alice")
    vault.recoveries.revoke(words.id, bob)
    assert vault.principals.remove_user(bob, "alice", force=True).lost == [id]


def test_the_words_are_not_in_the_database(directory: Path) -> None:
    with opened(directory) as vault:
        words = created(vault, "alice", 2, 3)
    content = (directory / "vault.db").read_bytes()
    assert not any(share.encode() in content for share in words.shares)
    assert words.wrapping not in content
    assert value_of(directory, "SELECT count(*) FROM document WHERE kind = 'recovery'") == 1


def test_a_key_that_was_put_under_another_user_opens_nothing(directory: Path) -> None:
    with opened(directory) as vault:
        words = created(vault, "alice")
    edit(directory, "UPDATE document SET body = replace(body, 'alice', 'bob') WHERE kind = 'recovery'")
    with opened(directory) as vault:
        from connmgr.errors import IntegrityError

        with pytest.raises(IntegrityError):
            vault.recoveries.use(list(words.shares), NEW)


def test_a_vault_without_users_has_nobody_to_recover(tmp_path: Path) -> None:
    with opened(new_directory(tmp_path)) as vault, pytest.raises(UnlockFailed):
        vault.recoveries.create("alice", PASSPHRASES["alice"], shares=1, threshold=1, guesser=ANYBODY)


def test_two_words_for_one_id_do_not_replace_each_other(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    first = created(vault, "alice")
    clash, other = dataclasses.replace(new_words(1, 1), id=first.id), new_words(1, 1)
    made = iter([clash, other])
    monkeypatch.setattr("connmgr.vault.recoveries.new_words", lambda _threshold, _shares: next(made))
    assert created(vault, "alice").id == other.id
    assert vault.recoveries.check(list(first.shares)).id == first.id
