"""Rotation of the vault's key and change of a passphrase are atomic, whenever the process is killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from connmgr.errors import IntegrityError, StartupError, VaultUnavailable
from connmgr.secrets import vault_key
from connmgr.secrets.passphrases import Cost, KeyDerivation
from connmgr.secrets.principals import VAULT, Access
from connmgr.secrets.vault_key import KeyFile, VaultKey, load
from connmgr.vault import Vault, open_database, principals
from connmgr.vault.backends import SQLite
from connmgr.vault.integrity import rotate
from connmgr.vault.names import ALL_CONNECTIONS
from tests.vault.conftest import make_older
from tests.vault.people import PASSPHRASES, add_connection, copied, edit, new_directory, opened, value_of

CYCLES = 10
MOST_CYCLES = 200
"""Most cycles until one is killed at the right moment."""

# The children use nothing that another thread of the test run may have locked.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def rotate_in(directory: Path) -> None:
    database = open_database(f"sqlite:///{directory / 'vault.db'}")
    try:
        rotate(database, KeyFile(directory / "vault.key"))
    finally:
        database.close()


def key_in(directory: Path) -> bytes:
    return (directory / "vault.key").read_bytes()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return new_directory(tmp_path)


@pytest.fixture
def filled(directory: Path) -> tuple[Path, dict[str, Any], list[str]]:
    """A closed vault with some connections, and a secret that a client has kept."""
    with opened(directory) as vault:
        kept = vault.principals.seal("kept by a client", Access())
        uuids = [
            add_connection(vault, f"host {number}", {"password": vault.principals.seal(f"password {number}", Access())})
            for number in range(20)
        ]
    return directory, kept, uuids


def check(vault: Vault, kept: dict[str, Any], uuids: list[str]) -> None:
    assert vault.principals.unseal(kept, Access()) == "kept by a client"
    values = [vault.principals.unseal(each.data["password"], Access()) for each in vault.connections.infos(uuids)]
    assert values == [f"password {number}" for number in range(20)]


def test_everything_is_as_before_but_for_the_key(filled: tuple[Path, dict[str, Any], list[str]]) -> None:
    directory, kept, uuids = filled
    old, verifier = key_in(directory), value_of(directory, "SELECT value FROM meta WHERE name = 'key_verifier'")
    data = value_of(directory, "SELECT group_concat(data) FROM connection")
    rotate_in(directory)
    assert key_in(directory) != old
    assert value_of(directory, "SELECT value FROM meta WHERE name = 'key_verifier'") != verifier
    assert value_of(directory, "SELECT group_concat(data) FROM connection") == data
    with opened(directory) as vault:
        check(vault, kept, uuids)
        assert len(vault.connections.query()) == 21
    (directory / "vault.key").write_bytes(old)
    with pytest.raises(StartupError, match="not the one"), opened(directory):
        pass


def test_users_keep_their_passphrases(template: Path, tmp_path: Path) -> None:
    directory = copied(template, tmp_path)
    rotate_in(directory)
    access = Access()
    with opened(directory) as vault:
        vault.principals.unlock(access, "alice", PASSPHRASES["alice"])
        assert vault.principals.unseal(vault.principals.seal("s", access), access) == "s"


def test_a_tampered_vault_is_not_rotated(filled: tuple[Path, dict[str, Any], list[str]]) -> None:
    directory, kept, uuids = filled
    old = key_in(directory)
    data = value_of(directory, "SELECT data FROM connection WHERE id = ?", uuids[7])
    edit(directory, "UPDATE connection SET data = '{}' WHERE id = ?", uuids[7])
    with pytest.raises(IntegrityError, match=uuids[7]):
        rotate_in(directory)
    edit(directory, "UPDATE connection SET data = ? WHERE id = ?", data, uuids[7])
    with opened(directory) as vault:
        check(vault, kept, uuids)
    assert key_in(directory) == old
    assert not (directory / "vault.key.next").exists()


def test_categories_have_their_codes_under_the_new_key(directory: Path) -> None:
    with opened(directory) as vault:
        team = vault.categories.add("Team", ALL_CONNECTIONS)
    rotate_in(directory)
    with opened(directory) as vault:
        assert vault.categories.query("team") == [team]
    edit(directory, "UPDATE category SET config = '[]' WHERE id = ?", team)
    with pytest.raises(IntegrityError, match=team):
        rotate_in(directory)
    edit(directory, "UPDATE category SET config = '{}' WHERE id = ?", team)
    with opened(directory) as left_running:
        rotate_in(directory)
        with pytest.raises(VaultUnavailable, match="key was rotated"):
            left_running.categories.infos([team])


def test_an_older_vault_is_brought_up_to_date_before(directory: Path) -> None:
    with opened(directory) as vault:
        team = vault.categories.add("Team", ALL_CONNECTIONS)
        vault.database.write(lambda tx: make_older(tx, VaultKey(key_in(directory))))
    rotate_in(directory)
    with opened(directory) as vault:
        assert vault.categories.query("team") == [team]


def test_without_the_vault_s_key_nothing_is_rotated(filled: tuple[Path, dict[str, Any], list[str]]) -> None:
    directory, _, _ = filled
    (directory / "vault.key").write_bytes(os.urandom(32))
    before = value_of(directory, "SELECT group_concat(hex(value)) FROM meta")
    with pytest.raises(StartupError, match="not the one"):
        rotate_in(directory)
    assert value_of(directory, "SELECT group_concat(hex(value)) FROM meta") == before


def test_a_daemon_that_was_left_running_stops_using_the_vault(filled: tuple[Path, dict[str, Any], list[str]]) -> None:
    directory, kept, uuids = filled
    with opened(directory) as left_running:
        rotate_in(directory)
        for use in (
            lambda: left_running.principals.seal("s", Access()),
            lambda: left_running.principals.unseal(kept, Access()),
            lambda: left_running.connections.get(uuids[0]),
            lambda: add_connection(left_running, "late", {}),
            lambda: left_running.connections.update(uuids[0], name="late"),
        ):
            with pytest.raises(VaultUnavailable, match="key was rotated"):
                use()
    with opened(directory) as vault:
        check(vault, kept, uuids)


def in_a_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process and return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def killed_at_random(work: Callable[[], None], generator: random.Random) -> None:
    """Repeat ``work`` in a child, and kill the child in the middle of a later round."""
    done, report = os.pipe()

    def repeat() -> None:
        while True:
            work()
            os.write(report, b".")

    pid = in_a_child(repeat)
    try:
        os.close(report)
        for _ in range(generator.randint(0, 3)):
            assert os.read(done, 1), "the child ended by itself"
        time.sleep(generator.uniform(0, 0.03))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(done)
        _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"


def test_rotation_survives_being_killed(filled: tuple[Path, dict[str, Any], list[str]]) -> None:
    directory, kept, uuids = filled
    generator = random.Random(3)
    keys, interrupted = set(), 0
    for cycle in range(MOST_CYCLES):
        if cycle >= CYCLES and interrupted and len(keys) > 1:
            break
        killed_at_random(lambda: rotate_in(directory), generator)
        interrupted += (directory / "vault.key.next").exists()
        with opened(directory) as vault:
            check(vault, kept, uuids)
        assert not (directory / "vault.key.next").exists()
        keys.add(key_in(directory))
    assert len(keys) > 1, "no rotation ever came through"
    assert interrupted, "no rotation was ever interrupted"


class Killer:
    """Kills its own process at the n-th system call that makes a rotation durable."""

    def __init__(self, at: int) -> None:
        self.left = at

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return function(*arguments, **options)

        return call


def test_rotation_survives_being_killed_at_each_step(filled: tuple[Path, dict[str, Any], list[str]]) -> None:
    directory, kept, uuids = filled
    steps = 0
    while True:
        killer = Killer(steps)

        def rotate_and_die(killer: Killer = killer) -> None:
            for name in ("open", "fsync", "rename", "unlink"):
                setattr(vault_key.os, name, killer.before(getattr(os, name)))
            from connmgr.vault import principal_rows

            principal_rows.put_meta = killer.before(principal_rows.put_meta)  # type: ignore[assignment]
            rotate_in(directory)

        _, status = os.waitpid(in_a_child(rotate_and_die), 0)
        with opened(directory) as vault:
            check(vault, kept, uuids)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        steps += 1
    assert steps >= 12, f"a rotation has only {steps} steps?"


def wrapped_key(directory: Path, name: str) -> bytes:
    return bytes(value_of(directory, "SELECT wrapped_key FROM principal WHERE name = ?", name))


def holding(directory: Path, content: bytes) -> set[str]:
    return {file.name for file in directory.iterdir() if file.is_file() and content in file.read_bytes()}


def dies(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rotation_leaves_nothing_that_the_old_key_opens(filled: tuple[Path, dict[str, Any], list[str]]) -> None:
    directory, _, _ = filled
    old = wrapped_key(directory, VAULT)
    with closing(sqlite3.connect(directory / "vault.db")) as somebody_who_looks:
        somebody_who_looks.execute("SELECT count(*) FROM meta").fetchall()
        rotate_in(directory)
        assert holding(directory, old) == set(), "whoever has the old key opens every secret with this file"


def test_a_killed_rotation_leaves_nothing_that_the_old_key_opens_once_the_vault_is_open(
    filled: tuple[Path, dict[str, Any], list[str]],
) -> None:
    directory, _, _ = filled
    old = wrapped_key(directory, VAULT)

    def rotate_and_die() -> None:
        SQLite.scrub = dies  # type: ignore[method-assign, assignment]
        KeyFile.promote = dies  # type: ignore[method-assign, assignment]
        rotate_in(directory)

    _, status = os.waitpid(in_a_child(rotate_and_die), 0)
    assert os.WIFSIGNALED(status)
    with opened(directory):
        assert holding(directory, old) == set(), "whoever has the old key opens every secret with this file"


def test_a_killed_change_of_passphrase_leaves_nothing_that_the_old_one_opens_once_the_vault_is_open(
    template: Path, tmp_path: Path
) -> None:
    directory = copied(template, tmp_path)
    old = wrapped_key(directory, "alice")

    def change_and_die() -> None:
        with opened(directory) as vault:
            SQLite.scrub = dies  # type: ignore[method-assign, assignment]
            vault.principals.change_passphrase("alice", PASSPHRASES["alice"], "alice's next passphrase")

    _, status = os.waitpid(in_a_child(change_and_die), 0)
    assert os.WIFSIGNALED(status)
    with opened(directory):
        assert holding(directory, old) == set(), "whoever has the old passphrase opens alice's secrets with this file"


@pytest.fixture
def one_salt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Real keys of real passphrases, derived once, since each derivation would take a second."""
    derive, known = KeyDerivation.derive, dict[str, bytes]()

    def remember(self: KeyDerivation, passphrase: str, salt: bytes, cost: Cost, **_: object) -> bytes:
        if passphrase not in known:
            known[passphrase] = derive(self, passphrase, salt, cost)
        return known[passphrase]

    with monkeypatch.context() as patched:
        patched.setattr(principals, "new_salt", lambda: b"the same each time"[:16])
        patched.setattr(KeyDerivation, "derive", remember)
        yield


def test_a_change_of_passphrase_survives_being_killed(directory: Path, one_salt: None) -> None:
    passphrases = ["the first passphrase", "the second passphrase"]
    generator = random.Random(4)
    access = Access()
    with opened(directory) as vault:
        vault.principals.add_user(access, "alice", passphrases[0])
        vault.principals.unlock(access, "alice", passphrases[0])
        kept = vault.principals.seal("kept by a client", access)
        vault.principals.change_passphrase("alice", *passphrases)
        vault.principals.change_passphrase("alice", *reversed(passphrases))

    def works(vault: Vault, passphrase: str) -> bool:
        user = vault.principals._load()["alice"]
        private = user.unwrap(vault.principals._derivation.derive(passphrase, user.salt, user.cost or Cost(0, 0)))
        if private is None:
            return False
        access = Access()
        access.grant(user, private)
        return vault.principals.unseal(kept, access) == "kept by a client"

    def change_back_and_forth() -> None:
        with opened(directory) as vault:
            old, new = passphrases if works(vault, passphrases[0]) else reversed(passphrases)
            vault.principals.change_passphrase("alice", old, new)

    seen: list[bool] = []
    for cycle in range(MOST_CYCLES):
        if cycle >= CYCLES and len(set(seen)) == 2:
            break
        killed_at_random(change_back_and_forth, generator)
        with opened(directory) as vault:
            working = [works(vault, passphrase) for passphrase in passphrases]
        assert working.count(True) == 1, f"of old and new passphrase work: {working}"
        seen.append(working[0])
    assert set(seen) == {True, False}, "the passphrase never changed"


def test_two_keys_and_no_verifier_are_never_chosen_between(filled: tuple[Path, dict[str, Any], list[str]]) -> None:
    directory, _, _ = filled
    KeyFile(directory / "vault.key").write_next(VaultKey.generate())
    with pytest.raises(StartupError, match="interrupted"):
        load(directory / "vault.key", create=False)
