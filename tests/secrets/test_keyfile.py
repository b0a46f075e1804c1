"""The key file: created safely, refused with the reason in every bad state, and never changed when refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from connmgr.errors import StartupError
from connmgr.secrets.vault_key import KEY_BYTES, KeyFile, VaultKey, load


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def key_path(data_dir: Path) -> Path:
    return data_dir / "vault.key"


def snapshot(directory: Path) -> dict[str, tuple[int, int, int, int, bytes]]:
    entries = {}
    for path in sorted(directory.iterdir()):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_mode & 0o400 else b""
        entries[path.name] = (status.st_mode, status.st_ino, status.st_mtime_ns, status.st_uid, content)
    return entries


def test_a_new_vault_gets_a_key_that_only_its_owner_can_read(key_path: Path) -> None:
    previous = os.umask(0)
    try:
        key = load(key_path, create=True)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(key_path.stat().st_mode) == 0o600
    assert key_path.stat().st_size == KEY_BYTES
    assert [path.name for path in key_path.parent.iterdir()] == ["vault.key"]
    assert load(key_path, create=False).verifier() == key.verifier()


def test_two_vaults_never_share_a_key(tmp_path: Path) -> None:
    paths = [tmp_path / name / "vault.key" for name in "ab"]
    for path in paths:
        path.parent.mkdir(mode=0o700)
    first, second = (load(path, create=True) for path in paths)
    assert first.verifier() != second.verifier()


def test_derived_keys_are_distinct_and_hide_the_key() -> None:
    raw = bytes(range(32))
    key = VaultKey(raw)
    derived = [key.verifier(), key.wrapping, key.mac(b""), key.principal_mac(b""), raw]
    assert len(set(derived)) == len(derived)
    assert repr(key) == "<VaultKey>"
    assert raw.hex() not in repr(key) + str(vars(type(key)).get("__dict__"))
    with pytest.raises(ValueError, match="32 bytes"):
        VaultKey(b"short")


def damaged(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def loosen(mode: int) -> Callable[[Path], object]:
    return lambda path: path.chmod(mode)


def symlink(path: Path) -> None:
    real = path.rename(path.with_name("elsewhere.key"))
    path.symlink_to(real)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o600)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def missing(path: Path) -> None:
    path.unlink()


def open_directory(path: Path) -> None:
    path.parent.chmod(0o750)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (loosen(0o640), "chmod 600"),
        (loosen(0o604), "chmod 600"),
        (loosen(0o700), "chmod 600"),
        (symlink, "symbolic link"),
        (directory, "not a regular file"),
        (fifo, "not a regular file"),
        (damaged(b""), "damaged"),
        (damaged(b"x" * 31), "damaged"),
        (damaged(b"x" * 33), "damaged"),
        (missing, "missing"),
        (open_directory, "chmod 700"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_bad_state_is_refused_by_name_and_left_as_it_is(
    key_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    verifier = load(key_path, create=True).verifier()
    spoil(key_path)
    before = snapshot(key_path.parent)
    for known in (None, verifier):
        with pytest.raises(StartupError, match=reason) as refusal:
            load(key_path, create=False, verifier=known)
        assert "\n" not in refusal.value.message
    assert snapshot(key_path.parent) == before


@pytest.mark.parametrize("spoil", [symlink, fifo, loosen(0o644), damaged(b"")])
def test_a_bad_key_file_is_never_replaced_even_for_an_empty_vault(
    key_path: Path, spoil: Callable[[Path], object]
) -> None:
    load(key_path, create=True)
    spoil(key_path)
    before = snapshot(key_path.parent)
    with pytest.raises(StartupError):
        load(key_path, create=True)
    assert snapshot(key_path.parent) == before


def test_another_owner_is_refused(key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(key_path, create=True)
    somebody = os.geteuid() + 1
    if os.geteuid() == 0:
        os.chown(key_path, somebody, -1)
        with pytest.raises(StartupError, match=r"key file .* belongs to another user"):
            load(key_path, create=False)
        os.chown(key_path, 0, -1)
        os.chown(key_path.parent, somebody, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(StartupError, match=r"directory .* belongs to another user"):
        load(key_path, create=False)


def test_an_unreadable_key_file_is_refused(key_path: Path) -> None:
    load(key_path, create=True)
    key_path.chmod(0)
    script = (
        "import os, pathlib, sys\n"
        "from connmgr.secrets.vault_key import load\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "load(pathlib.Path(sys.argv[1]), create=False)"
    )
    if os.geteuid() == 0:
        # By its descriptor, because the directories above are closed to the other user.
        os.chown(key_path.parent, 65534, -1)
        os.chown(key_path, 65534, -1)
        descriptor = os.open(key_path.parent, os.O_RDONLY)
        target = f"/proc/self/fd/{descriptor}/vault.key"
        passed: tuple[int, ...] = (descriptor,)
    else:
        target, passed = str(key_path), ()
    command = [sys.executable, "-c", script, target]
    result = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=passed, timeout=30)
    assert "StartupError" in result.stderr, result.stderr
    assert "Permission denied" in result.stderr.splitlines()[-1]


def test_a_wrong_key_is_refused_and_kept(key_path: Path) -> None:
    load(key_path, create=True)
    before = snapshot(key_path.parent)
    with pytest.raises(StartupError, match="not the one that this vault was made with"):
        load(key_path, create=False, verifier=VaultKey.generate().verifier())
    assert snapshot(key_path.parent) == before


class TestRotationInterrupted:
    """With both key files, the vault's verifier decides which one is valid."""

    def test_before_the_vault_changed(self, key_path: Path) -> None:
        old = load(key_path, create=True)
        KeyFile(key_path).write_next(VaultKey.generate())
        assert load(key_path, create=False, verifier=old.verifier()).matches(old.verifier())
        assert [path.name for path in key_path.parent.iterdir()] == ["vault.key"]

    def test_after_the_vault_changed(self, key_path: Path) -> None:
        load(key_path, create=True)
        new = VaultKey.generate()
        KeyFile(key_path).write_next(new)
        assert load(key_path, create=False, verifier=new.verifier()).matches(new.verifier())
        assert key_path.read_bytes() == new.exposed()
        assert [path.name for path in key_path.parent.iterdir()] == ["vault.key"]

    def test_while_the_next_key_was_written(self, key_path: Path) -> None:
        old = load(key_path, create=True)
        half = key_path.with_name("vault.key.next")
        half.write_bytes(b"half")
        half.chmod(0o600)
        load(key_path, create=False, verifier=old.verifier())
        assert not half.exists()

    def test_without_a_verifier_neither_key_is_given_up(self, key_path: Path) -> None:
        load(key_path, create=True)
        KeyFile(key_path).write_next(VaultKey.generate())
        before = snapshot(key_path.parent)
        with pytest.raises(StartupError, match="interrupted"):
            load(key_path, create=False)
        assert snapshot(key_path.parent) == before

    def test_a_crash_while_the_first_key_was_made(self, key_path: Path) -> None:
        KeyFile(key_path).write_next(VaultKey.generate())
        key = load(key_path, create=True)
        assert [path.name for path in key_path.parent.iterdir()] == ["vault.key"]
        assert load(key_path, create=True).matches(key.verifier())
