"""Principals in the vault: who may open which secrets, and edits of the database."""

from __future__ import annotations

import base64
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from connmgr.errors import (
    ConnmgrError,
    IntegrityError,
    InvalidRequest,
    LastPrincipal,
    SecretLocked,
    StartupError,
    UnknownPrincipal,
    UnknownUser,
    UnlockFailed,
    UnlockThrottled,
    UserExists,
    VaultLocked,
)
from connmgr.secrets.passphrases import MODERATE, Cost, Delays, Throttle, new_salt
from connmgr.secrets.principals import Access, new_principal
from connmgr.vault import Vault, principals
from connmgr.vault.names import ALL_CONNECTIONS, DEFAULT
from tests.clock import Clock
from tests.deadlines import DEADLINE_SECONDS
from tests.derivation import real_cost
from tests.vault.people import PASSPHRASES, add_connection, edit, new_directory, opened, value_of


@pytest.fixture
def vault(directory: Path) -> Iterator[Vault]:
    with opened(directory) as vault:
        yield vault


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Vault]:
    with opened(new_directory(tmp_path)) as vault:
        yield vault


def unlocked(vault: Vault, user: str) -> Access:
    access = Access()
    vault.principals.unlock(access, user, PASSPHRASES[user])
    return access


class TestWithoutUsers:
    def test_every_session_has_the_vault(self, empty: Vault) -> None:
        encrypted = empty.principals.seal("s3cret", Access())
        assert empty.principals.unseal(encrypted, Access()) == "s3cret"
        status = empty.principals.status(Access())
        assert (status.has_users, status.user, status.principals, status.users) == (False, None, ("vault",), ())

    def test_secrets_survive_a_restart(self, tmp_path: Path) -> None:
        directory = new_directory(tmp_path)
        with opened(directory) as vault:
            encrypted = vault.principals.seal("s3cret", Access())
        with opened(directory) as vault:
            assert vault.principals.unseal(encrypted, Access()) == "s3cret"

    def test_of_two_sessions_that_add_the_first_user_one_does(
        self, empty: Vault, derivations: list[tuple[str, Cost]]
    ) -> None:
        start = threading.Barrier(2)
        outcomes: list[str] = []

        def add(name: str) -> None:
            start.wait(DEADLINE_SECONDS)
            try:
                empty.principals.add_user(Access(), name, PASSPHRASES[name])
                outcomes.append("added")
            except ConnmgrError as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=add, args=[name]) for name in PASSPHRASES]
        # A slow derivation makes the two threads meet.
        with real_cost():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE_SECONDS)
        assert sorted(outcomes) == ["added", "vault_locked"]
        assert len(derivations) <= 2

    @pytest.mark.parametrize("name", ["vault", "alice"])
    def test_nobody_can_be_removed(self, empty: Vault, name: str) -> None:
        with pytest.raises(UnknownUser, match=name):
            empty.principals.remove_user(Access(), name)


class TestSessions:
    def test_a_session_that_unlocked_nobody_can_seal_and_not_open(self, vault: Vault) -> None:
        access = Access()
        encrypted = vault.principals.seal("s", access)
        with pytest.raises(SecretLocked) as refusal:
            vault.principals.unseal(encrypted, access)
        assert refusal.value.details == {"principals": ["vault"]}
        status = vault.principals.status(access)
        assert (status.has_users, status.user, status.principals, status.users) == (True, None, (), ())

    def test_unlocking_gives_the_user_and_the_vault_until_it_is_locked(self, vault: Vault) -> None:
        for_vault = vault.principals.seal("vault's", Access())
        alice = unlocked(vault, "alice")
        for_alice = vault.principals.seal("alice's", alice)
        assert vault.principals.unseal(for_alice, alice) == "alice's"
        assert vault.principals.unseal(for_vault, alice) == "vault's"
        status = vault.principals.status(alice)
        assert (status.user, status.principals, status.users) == ("alice", ("alice", "vault"), ("alice", "bob"))
        alice.lock()
        for encrypted, holder in ((for_alice, "alice"), (for_vault, "vault")):
            with pytest.raises(SecretLocked) as refusal:
                vault.principals.unseal(encrypted, alice)
            assert refusal.value.details == {"principals": [holder]}

    def test_one_session_does_not_unlock_for_another(self, vault: Vault) -> None:
        encrypted = vault.principals.seal("s", unlocked(vault, "alice"))
        for other in (Access(), unlocked(vault, "bob")):
            with pytest.raises(SecretLocked, match="unlock alice first"):
                vault.principals.unseal(encrypted, other)

    def test_a_second_user_takes_the_place_of_the_first(self, vault: Vault) -> None:
        access = unlocked(vault, "alice")
        encrypted = vault.principals.seal("s", access)
        vault.principals.unlock(access, "bob", PASSPHRASES["bob"])
        assert vault.principals.status(access).principals == ("bob", "vault")
        with pytest.raises(SecretLocked):
            vault.principals.unseal(encrypted, access)

    def test_principals_name_others(self, vault: Vault) -> None:
        alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
        both = vault.principals.seal("s", Access(), ["bob", "alice", "bob"])
        assert vault.principals.unseal(both, alice) == vault.principals.unseal(both, bob) == "s"
        for_bob = vault.principals.seal("s", alice, ["bob"])
        with pytest.raises(SecretLocked) as refusal:
            vault.principals.unseal(for_bob, alice)
        assert refusal.value.details == {"principals": ["bob"]}

    def test_a_principal_that_does_not_exist_is_refused_without_naming_those_that_do(self, vault: Vault) -> None:
        with pytest.raises(UnknownPrincipal) as refusal:
            vault.principals.seal("the value", Access(), ["alice", "mallory"])
        assert not [word for word in ("alice", "bob", "the value") if word in refusal.value.message]

    def test_no_principal_at_all_is_refused(self, vault: Vault) -> None:
        with pytest.raises(InvalidRequest):
            vault.principals.seal("s", Access(), [])


class TestUnlocking:
    def test_unknown_user_and_wrong_passphrase_cost_and_say_the_same(
        self, vault: Vault, derivations: list[tuple[str, Cost]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        salt = new_salt()
        monkeypatch.setattr(principals, "new_salt", lambda: salt)
        answers = []
        for user in ("alice", "mallory", "vault", "", "x" * 1000, "\u202ealice"):
            with pytest.raises(UnlockFailed) as refusal:
                vault.principals.unlock(Access(), user, "not the passphrase")
            answers.append((refusal.value.code, refusal.value.message, refusal.value.details))
        assert len(set(map(str, answers))) == 1
        assert derivations == [("not the passphrase", MODERATE)] * 6

    @pytest.mark.parametrize("user", ["alice", "vault", ""])
    def test_without_users_it_says_so_and_derives_nothing(
        self, empty: Vault, derivations: list[tuple[str, Cost]], user: str
    ) -> None:
        attempts: list[Callable[[], object]] = [
            lambda: empty.principals.unlock(Access(), user, "a long passphrase"),
            lambda: empty.principals.change_passphrase(user, "a long passphrase", "another passphrase"),
            lambda: empty.principals.remove_user(Access(), user, passphrase="a long passphrase"),
        ]
        for attempt in attempts * 3:
            with pytest.raises(UnlockFailed, match=r"has no users.*connmgr vault user add"):
                attempt()
        assert derivations == []

    def test_failures_are_throttled_without_deriving_and_without_locking_out(
        self, vault: Vault, derivations: list[tuple[str, Cost]], clock: Clock
    ) -> None:
        vault.principals._throttle = Throttle(user=Delays(1, 60), clock=clock)
        for _ in range(2):
            with pytest.raises(UnlockFailed):
                vault.principals.unlock(Access(), "alice", "not the passphrase")
        attempts = len(derivations)
        with pytest.raises(UnlockThrottled) as refusal:
            unlocked(vault, "alice")
        assert refusal.value.retry_after == 1
        assert len(derivations) == attempts
        assert unlocked(vault, "bob").principal is not None
        clock.now += refusal.value.retry_after
        assert unlocked(vault, "alice").principal is not None

    def test_a_passphrase_is_the_same_from_every_keyboard(
        self, empty: Vault, derivations: list[tuple[str, Cost]]
    ) -> None:
        empty.principals.add_user(Access(), "carol", "Schlüssel für café")
        access = Access()
        empty.principals.unlock(access, "carol", "Schlu\u0308ssel fu\u0308r cafe\u0301")
        assert access.principal is not None
        assert len(derivations) == 2


class TestUsers:
    @pytest.mark.parametrize("name", ["vault", "", "Alice", "al ice", "-alice", "a" * 65, "alice\n", "älice", "a/b"])
    def test_a_bad_name_is_refused(self, vault: Vault, name: str) -> None:
        with pytest.raises(InvalidRequest, match="name has 1 to 64"):
            vault.principals.add_user(unlocked(vault, "alice"), name, "a long passphrase")

    def test_only_an_unlocked_session_may_add_and_remove(self, vault: Vault) -> None:
        with pytest.raises(VaultLocked):
            vault.principals.add_user(Access(), "carol", "a long passphrase")
        with pytest.raises(VaultLocked):
            vault.principals.remove_user(Access(), "bob")
        with pytest.raises(UserExists):
            vault.principals.add_user(unlocked(vault, "alice"), "bob", "a long passphrase")
        with pytest.raises(UnknownUser):
            vault.principals.remove_user(unlocked(vault, "alice"), "mallory")

    def test_a_changed_passphrase_leaves_every_secret_as_it_is(self, vault: Vault, directory: Path) -> None:
        before = unlocked(vault, "alice")
        encrypted = vault.principals.seal("s", before)
        uuid = add_connection(vault, "stored", {"password": encrypted})
        record = value_of(directory, "SELECT data FROM connection WHERE id = ?", uuid)
        vault.principals.change_passphrase("alice", PASSPHRASES["alice"], "another passphrase")
        assert value_of(directory, "SELECT data FROM connection WHERE id = ?", uuid) == record
        assert vault.principals.unseal(encrypted, before) == "s", "sessions stay unlocked"
        with pytest.raises(UnlockFailed):
            unlocked(vault, "alice")
        after = Access()
        vault.principals.unlock(after, "alice", "another passphrase")
        assert vault.principals.unseal(encrypted, after) == "s"
        with pytest.raises(UnlockFailed):
            vault.principals.change_passphrase("alice", PASSPHRASES["alice"], "a third passphrase")

    def test_a_new_passphrase_must_be_long_enough(self, vault: Vault) -> None:
        with pytest.raises(InvalidRequest, match="8 to 1024"):
            vault.principals.change_passphrase("alice", PASSPHRASES["alice"], "short")

    def test_removal_lists_what_the_user_could_read_and_ends_its_access(self, vault: Vault) -> None:
        alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
        both = vault.principals.seal("s", alice, ["alice", "bob"])
        shared = add_connection(vault, "shared", {"identity": {"key": both}, "list": [both], "port": 22})
        add_connection(vault, "other", {"password": vault.principals.seal("s", alice)})
        assert vault.principals.remove_user(alice, "bob").readable == [shared]
        with pytest.raises(SecretLocked):
            vault.principals.unseal(both, bob)
        assert vault.principals.status(bob).principals == ()
        with pytest.raises(UnknownPrincipal):
            vault.principals.seal("s", alice, ["bob"])
        with pytest.raises(UnlockFailed):
            unlocked(vault, "bob")

    def test_removal_does_not_lose_secrets_unless_it_is_forced(self, vault: Vault) -> None:
        alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
        mine = vault.principals.seal("s", bob)
        uuid = add_connection(vault, "bob's alone", {"password": mine})
        with pytest.raises(LastPrincipal) as refusal:
            vault.principals.remove_user(alice, "bob")
        assert refusal.value.details == {"connections": [uuid]}
        assert vault.principals.unseal(mine, bob) == "s"
        assert vault.principals.remove_user(alice, "bob", force=True).lost == [uuid]
        with pytest.raises(SecretLocked, match="Nobody can open"):
            vault.principals.unseal(mine, alice)

    def test_the_last_passphrase_goes_and_no_secret_with_it(self, vault: Vault) -> None:
        alice = unlocked(vault, "alice")
        vault.principals.remove_user(alice, "bob")
        mine = vault.principals.seal("s", alice)
        below = add_connection(vault, "below", {"password": mine, "list": [{"key": mine}], "port": 22})
        removed = vault.principals.remove_user(alice, "alice")
        assert (removed.readable, removed.resealed, removed.heir, removed.lost) == ([below], [below], "vault", [])
        [stored] = vault.connections.infos([below])
        for one in (stored.data["password"], stored.data["list"][0]["key"]):
            assert vault.principals.unseal(one, Access()) == "s"
        assert stored.data["port"] == 22
        with pytest.raises(SecretLocked, match="Nobody can open"):
            vault.principals.unseal(mine, alice)

    @pytest.mark.parametrize("session", ["alice", "nobody", "bob"])
    def test_secrets_of_a_removed_user_are_sealed_anew(self, vault: Vault, session: str) -> None:
        bob = unlocked(vault, "bob")
        mine = add_connection(vault, "bob's alone", {"password": vault.principals.seal("s", bob)})
        both = add_connection(vault, "shared", {"password": vault.principals.seal("t", bob, ["alice", "bob"])})
        before = vault.connections.infos([both])
        access = Access() if session == "nobody" else unlocked(vault, session)
        given = {} if session == "bob" else {"passphrase": PASSPHRASES["bob"]}
        removed = vault.principals.remove_user(access, "bob", **given)  # type: ignore[arg-type]
        heir = "alice" if session == "alice" else "vault"
        assert (removed.resealed, removed.heir, removed.lost) == ([mine], heir, [])
        assert sorted(removed.readable) == sorted([mine, both])
        alice = unlocked(vault, "alice")
        for id, value in ((mine, "s"), (both, "t")):
            [stored] = vault.connections.infos([id])
            assert vault.principals.unseal(stored.data["password"], alice) == value
        assert vault.connections.infos([both]) == before
        assert vault.principals.status(bob).user is None

    @pytest.mark.parametrize("wrong", ["", "wrong", PASSPHRASES["alice"]])
    def test_a_wrong_passphrase_removes_nobody(self, vault: Vault, wrong: str) -> None:
        for access in (Access(), unlocked(vault, "alice")):
            with pytest.raises(UnlockFailed):
                vault.principals.remove_user(access, "bob", passphrase=wrong, force=True)
            assert unlocked(vault, "bob").principal is not None

    def test_a_refusal_counts_and_names_what_would_be_lost(self, vault: Vault) -> None:
        alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
        for number in range(7):
            add_connection(vault, f"web{number}", {"password": vault.principals.seal("s", bob)})
        with pytest.raises(LastPrincipal) as refusal:
            vault.principals.remove_user(alice, "bob")
        assert len(refusal.value.details["connections"]) == 7
        assert "secrets of 7 connections: web" in refusal.value.message
        assert "and 2 more" in refusal.value.message
        assert unlocked(vault, "bob").principal is not None

    def test_a_connection_that_was_changed_outside_is_not_sealed_anew(self, vault: Vault, directory: Path) -> None:
        bob = unlocked(vault, "bob")
        sound = add_connection(vault, "sound", {"password": vault.principals.seal("s", bob)})
        edited = add_connection(vault, "edited", {"host": "here", "password": vault.principals.seal("s", bob)})
        edit(directory, "UPDATE connection SET data = replace(data, '\"here\"', '\"there\"') WHERE id = ?", edited)
        with pytest.raises(LastPrincipal) as refusal:
            vault.principals.remove_user(bob, "bob")
        assert refusal.value.details == {"connections": [edited]}
        removed = vault.principals.remove_user(bob, "bob", force=True)
        assert (removed.resealed, removed.lost) == ([sound], [edited])

    def test_passwords_for_sudo_of_a_removed_user_are_sealed_anew(self, vault: Vault) -> None:
        alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
        own, inherits = add_connection(vault, "own", {}), add_connection(vault, "inherits", {"port": 1})
        passwords = vault.connections.sudo_passwords
        passwords.store(own, vault.principals.seal("of own", bob))
        passwords.store(DEFAULT, vault.principals.seal("of all", bob))
        removed = vault.principals.remove_user(alice, "bob", passphrase=PASSPHRASES["bob"])
        assert {own, inherits} <= set(removed.resealed)
        assert removed.lost == []
        for id, value in ((own, "of own"), (inherits, "of all")):
            found = passwords.stored(id, DEFAULT)
            assert found is not None
            assert vault.principals.unseal(found.sealed, alice) == value

    def test_the_password_of_an_empty_category_is_not_lost_in_silence(self, vault: Vault) -> None:
        alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
        empty = vault.categories.add("empty", ALL_CONNECTIONS)
        vault.connections.sudo_passwords.store(empty, vault.principals.seal("s", bob))
        with pytest.raises(LastPrincipal, match=f"category {empty}"):
            vault.principals.remove_user(alice, "bob")

    def test_passwords_for_sudo_count_for_their_connections(self, vault: Vault) -> None:
        alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
        own, inherits = add_connection(vault, "own", {}), add_connection(vault, "inherits", {"port": 1})
        passwords = vault.connections.sudo_passwords
        passwords.store(own, vault.principals.seal("s", bob))
        with pytest.raises(LastPrincipal) as refusal:
            vault.principals.remove_user(alice, "bob")
        assert refusal.value.details == {"connections": [own]}
        passwords.store(own, vault.principals.seal("s", alice, ["alice", "bob"]))
        passwords.store(DEFAULT, vault.principals.seal("s", alice, ["alice", "bob"]))
        assert {own, inherits} <= set(vault.principals.remove_user(alice, "bob").readable)
        [stored] = vault.connections.infos([own])
        found = passwords.stored(own, stored.category)
        assert found is not None
        assert found.of == own
        vault.connections.remove([own])
        after = passwords.stored(own, stored.category)
        assert after is not None
        assert after.of == DEFAULT

    def test_a_damaged_secret_does_not_keep_a_user_in(self, vault: Vault, directory: Path) -> None:
        alice = unlocked(vault, "alice")
        uuid = add_connection(vault, "damaged", {"password": vault.principals.seal("s", alice)})
        edit(directory, "UPDATE connection SET data = replace(data, 'locked', 'opened') WHERE id = ?", uuid)
        assert vault.principals.remove_user(alice, "bob").readable == [uuid]

    def test_a_later_user_of_the_same_name_is_somebody_else(self, vault: Vault) -> None:
        alice, bob = unlocked(vault, "alice"), unlocked(vault, "bob")
        mine = vault.principals.seal("s", bob)
        vault.principals.remove_user(alice, "bob")
        vault.principals.add_user(alice, "bob", PASSPHRASES["bob"])
        for access in (bob, unlocked(vault, "bob")):
            with pytest.raises(SecretLocked, match="Nobody can open"):
                vault.principals.unseal(mine, access)

    def test_after_the_last_user_the_vault_is_one_without_users(self, vault: Vault) -> None:
        alice = unlocked(vault, "alice")
        for_vault = vault.principals.seal("s", alice, ["vault"])
        vault.principals.remove_user(alice, "bob")
        assert vault.principals.remove_user(alice, "alice").readable == []
        assert alice.principal is None
        assert vault.principals.unseal(for_vault, Access()) == "s"
        assert vault.principals.status(Access()).has_users is False


def put_back(directory: Path) -> None:
    """Restore the row of alice from before her change of passphrase."""
    with closing(sqlite3.connect(directory / "vault.db")) as connection:
        old = connection.execute("SELECT * FROM principal WHERE name = 'alice'").fetchone()
    with opened(directory) as vault:
        vault.principals.change_passphrase("alice", PASSPHRASES["alice"], "another passphrase")
    edit(directory, "DELETE FROM principal WHERE name = 'alice'")
    edit(directory, f"INSERT INTO principal VALUES ({', '.join('?' * len(old))})", *old)


def everybody(directory: Path) -> None:
    """Remove all traces of principals, as in a vault without users."""
    edit(directory, "DELETE FROM principal")
    edit(directory, "DELETE FROM meta WHERE name = 'principals_mac'")


def exchange(column: str) -> Callable[[Path], None]:
    def between_alice_and_bob(directory: Path) -> None:
        query = f"SELECT {column} FROM principal WHERE name = ?"
        values = [value_of(directory, query, name) for name in ("bob", "alice")]
        for name, value in zip(("alice", "bob"), values, strict=True):
            edit(directory, f"UPDATE principal SET {column} = ? WHERE name = ?", value, name)

    return between_alice_and_bob


def run(statement: str, *values: Any) -> Callable[[Path], None]:
    return lambda directory: edit(directory, statement, *values)


ATTACKERS_KEY = new_principal("mallory", bytes(32))[0].public_key
ALICE = " WHERE name = 'alice'"
EDITS = {
    "a public key of the attacker's": run("UPDATE principal SET public_key = ?" + ALICE, ATTACKERS_KEY),
    "the vault's public key": run("UPDATE principal SET public_key = ? WHERE name = 'vault'", ATTACKERS_KEY),
    "public keys exchanged": exchange("public_key"),
    "wrapped keys exchanged": exchange("wrapped_key"),
    "salts exchanged": exchange("kdf_salt"),
    "codes exchanged": exchange("mac"),
    "fewer passes": run("UPDATE principal SET kdf_opslimit = 1" + ALICE),
    "less memory": run("UPDATE principal SET kdf_memlimit = 8192" + ALICE),
    "absurd memory": run("UPDATE principal SET kdf_memlimit = 1 << 62" + ALICE),
    "negative passes": run("UPDATE principal SET kdf_opslimit = -1" + ALICE),
    "no salt": run("UPDATE principal SET kdf_salt = NULL" + ALICE),
    "passes that are no number": run("UPDATE principal SET kdf_opslimit = 'three'" + ALICE),
    "a code that is no bytes": run("UPDATE principal SET mac = 'abc'" + ALICE),
    "another name": run("UPDATE principal SET name = 'carol'" + ALICE),
    "a user taken away": run("DELETE FROM principal" + ALICE),
    "all users taken away": run("DELETE FROM principal WHERE name <> 'vault'"),
    "the vault taken away": run("DELETE FROM principal WHERE name = 'vault'"),
    "everybody taken away": run("DELETE FROM principal"),
    "everybody and their code taken away": everybody,
    "a copy under another name": run(
        "INSERT INTO principal SELECT 'mallory', public_key, wrapped_key, kdf_salt, kdf_opslimit, kdf_memlimit, mac"
        " FROM principal" + ALICE
    ),
    "an earlier passphrase put back": put_back,
    "no code of all": run("DELETE FROM meta WHERE name = 'principals_mac'"),
    "another code of all": run("UPDATE meta SET value = zeroblob(32) WHERE name = 'principals_mac'"),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_an_edited_principal_is_refused_before_it_is_used(
    directory: Path, change: Callable[[Path], None], derivations: list[tuple[str, Cost]]
) -> None:
    with opened(directory) as vault:
        alice = unlocked(vault, "alice")
        encrypted = vault.principals.seal("s", alice)
        change(directory)
        derivations.clear()
        for use in (
            lambda: vault.principals.seal("s", alice),
            lambda: vault.principals.unseal(encrypted, alice),
            lambda: vault.principals.status(alice),
            lambda: unlocked(vault, "alice"),
            lambda: vault.principals.remove_user(alice, "bob"),
            lambda: vault.principals.add_user(alice, "carol", "a long passphrase"),
        ):
            with pytest.raises(IntegrityError):
                use()
    assert derivations == [], "a key was derived with parameters that nobody vouches for"
    with pytest.raises(StartupError), opened(directory):
        pass


def test_every_changed_byte_of_a_stored_secret_is_refused(empty: Vault, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    encrypted = empty.principals.seal("the value", Access())
    uuid = add_connection(empty, "stored", {"password": encrypted})
    text = value_of(directory, "SELECT data FROM connection WHERE id = ?", uuid)
    accepted = []
    with closing(sqlite3.connect(directory / "vault.db")) as connection:
        for at in range(len(text)):
            changed = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
            with connection:
                connection.execute("UPDATE connection SET data = ? WHERE id = ?", [changed, uuid])
            try:
                empty.connections.get(uuid)
                accepted.append(at)
            except IntegrityError:
                continue
    assert accepted == []
    assert len(text) > 400
    edit(directory, "UPDATE connection SET data = ? WHERE id = ?", text, uuid)
    assert empty.principals.unseal(empty.connections.get(uuid).data["password"], Access()) == "the value"


def test_secrets_exchanged_between_connections_are_refused(empty: Vault, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    secrets = [empty.principals.seal(value, Access()) for value in ("for test", "for production")]
    uuids = [add_connection(empty, f"c{n}", {"password": secret}) for n, secret in enumerate(secrets)]
    texts = [value_of(directory, "SELECT data FROM connection WHERE id = ?", uuid) for uuid in uuids]
    for uuid, text in zip(uuids, reversed(texts), strict=True):
        edit(directory, "UPDATE connection SET data = ? WHERE id = ?", text, uuid)
    for uuid in uuids:
        with pytest.raises(IntegrityError, match=uuid):
            empty.connections.get(uuid)


def test_the_database_holds_no_secret_and_no_private_key(directory: Path, derivations: list[tuple[str, Cost]]) -> None:
    with opened(directory) as vault:
        alice = unlocked(vault, "alice")
        add_connection(vault, "c", {"password": vault.principals.seal("canary-value", alice)})
        private = bytes(alice._private)
        files = b"".join(path.read_bytes() for path in directory.iterdir() if path.name != "vault.key")
    key = (directory / "vault.key").read_bytes()
    for hidden in (b"canary-value", private, key, *(text.encode() for text in PASSPHRASES.values())):
        for spelling in (hidden, base64.b64encode(hidden), hidden.hex().encode()):
            assert spelling not in files
    assert derivations == [(PASSPHRASES["alice"], MODERATE)]
