"""The key in the operating system's keyring, with a backend that keeps its entries in memory."""

from __future__ import annotations

import base64
from pathlib import Path

import keyring.backends.fail
import keyring.backends.null
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringError, KeyringLocked, PasswordDeleteError, PasswordSetError

from connmgr.errors import StartupError
from connmgr.secrets.vault_key import Keyring, VaultKey, load_from


class InMemory(KeyringBackend):
    """A backend as in the package's documentation, which can be locked."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}
        self.failure: type[Exception] | None = None

    def _usable(self) -> None:
        if self.failure is not None:
            raise self.failure("user@host: /home/user/secret-path")

    def get_password(self, service: str, username: str) -> str | None:
        self._usable()
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._usable()
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._usable()
        if self.entries.pop((service, username), None) is None:
            raise PasswordDeleteError("no such entry")


@pytest.fixture
def backend() -> InMemory:
    return InMemory()


@pytest.fixture
def store(backend: InMemory, tmp_path: Path) -> Keyring:
    return Keyring(tmp_path, backend)


def test_a_new_vault_gets_a_key_under_its_directory(store: Keyring, backend: InMemory, tmp_path: Path) -> None:
    key = load_from(store, create=True)
    assert backend.entries == {("connmgr", str(tmp_path)): base64.b64encode(key.exposed()).decode()}
    assert load_from(store, create=False, verifier=key.verifier()).matches(key.verifier())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("committed", "kept"), [(False, "old"), (True, "new")])
def test_an_interrupted_rotation_is_finished(store: Keyring, backend: InMemory, committed: bool, kept: str) -> None:
    keys = {"old": load_from(store, create=True), "new": VaultKey.generate()}
    store.write_next(keys["new"])
    verifier = keys["new" if committed else "old"].verifier()
    assert load_from(store, create=False, verifier=verifier).matches(keys[kept].verifier())
    assert list(backend.entries.values()) == [base64.b64encode(keys[kept].exposed()).decode()]


def test_a_promotion_interrupted_between_its_steps_is_finished(store: Keyring, backend: InMemory) -> None:
    load_from(store, create=True)
    new = VaultKey.generate()
    store.write_next(new)
    backend.delete_password = lambda *_: None  # type: ignore[method-assign]
    store.promote()
    del backend.delete_password  # type: ignore[method-assign]
    assert len(backend.entries) == 2
    assert load_from(store, create=False, verifier=new.verifier()).matches(new.verifier())
    assert len(backend.entries) == 1


@pytest.mark.parametrize("text", ["", "no base64!", "c2hvcnQ=", "A" * 1000])
def test_a_malformed_entry_is_refused_and_kept(store: Keyring, backend: InMemory, tmp_path: Path, text: str) -> None:
    backend.entries["connmgr", str(tmp_path)] = text
    for create in (True, False):
        with pytest.raises(StartupError, match="does not hold a vault key"):
            load_from(store, create=create)
    assert backend.entries == {("connmgr", str(tmp_path)): text}


def test_a_missing_entry_is_refused(store: Keyring) -> None:
    with pytest.raises(StartupError, match="missing"):
        load_from(store, create=False)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (KeyringLocked, "is locked"),
        (PasswordSetError, "cannot be used"),
        (KeyringError, "cannot be used"),
        (OSError, "cannot be used"),
    ],
)
def test_a_keyring_that_does_not_answer_is_refused(
    store: Keyring, backend: InMemory, failure: type[Exception], reason: str
) -> None:
    load_from(store, create=True)
    before = dict(backend.entries)
    backend.failure = failure
    with pytest.raises(StartupError, match=reason) as refusal:
        load_from(store, create=True)
    assert "secret-path" not in refusal.value.message
    assert backend.entries == before


@pytest.mark.parametrize("backend", [keyring.backends.fail.Keyring, keyring.backends.null.Keyring])
def test_a_machine_without_a_keyring_is_refused(tmp_path: Path, backend: type[KeyringBackend]) -> None:
    before = keyring.get_keyring()
    keyring.set_keyring(backend())
    try:
        with pytest.raises(StartupError, match="No keyring"):
            Keyring(tmp_path)
    finally:
        keyring.set_keyring(before)
