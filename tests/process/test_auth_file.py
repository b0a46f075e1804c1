"""The auth file: new at every start, private, and never in place of another file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from connmgr.daemon.files import AuthFile
from connmgr.errors import StartupError
from tests.conftest import StartDaemon


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    return directory / "auth"


def test_the_auth_file_is_private_fresh_and_removed_at_the_end(path: Path) -> None:
    first = AuthFile(path)
    assert path.read_text() == first.content + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first.remove()
    first.remove()
    assert not path.exists()
    second = AuthFile(path)
    assert second.content != first.content
    assert len(second.content) == len("connmgr-") + 43
    second.remove()


def test_its_directory_is_made_private(tmp_path: Path) -> None:
    file = AuthFile(tmp_path / "new" / "auth")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    file.remove()


def test_the_file_of_a_dead_daemon_is_replaced(path: Path) -> None:
    path.write_text("connmgr-" + "x" * 43 + "\n")
    inode = path.stat().st_ino
    file = AuthFile(path)
    assert path.read_text() == file.content + "\n"
    assert path.stat().st_ino != inode or path.read_text() != "connmgr-" + "x" * 43
    file.remove()


def test_a_living_daemon_s_file_is_refused(path: Path) -> None:
    living = AuthFile(path)
    with pytest.raises(StartupError, match="--auth-file"):
        AuthFile(path)
    assert path.read_text() == living.content + "\n"
    living.remove()


@pytest.mark.parametrize("kind", ["file", "empty", "longer", "symlink", "dangling", "hardlink", "directory", "fifo"])
def test_any_other_file_is_refused_and_left_unchanged(path: Path, kind: str) -> None:
    ours = "connmgr-" + "x" * 43 + "\n"
    other = path.with_name("other")
    if kind in {"file", "empty", "longer"}:
        path.write_text({"file": "precious", "empty": "", "longer": ours + "more"}[kind])
    elif kind == "symlink":
        other.write_text(ours)
        path.symlink_to(other)
    elif kind == "dangling":
        path.symlink_to(other)
    elif kind == "hardlink":
        other.write_text(ours)
        path.hardlink_to(other)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(StartupError, match=r"is not an auth file|cannot be made"):
        AuthFile(path)
    assert path.lstat() == before or path.lstat().st_ino == before.st_ino
    assert kind == "dangling" or not other.exists() or other.read_text() == ours
    assert kind != "dangling" or not other.exists()


def test_a_replaced_file_is_not_removed(path: Path) -> None:
    file = AuthFile(path)
    path.unlink()
    path.write_text("another's")
    file.remove()
    assert path.read_text() == "another's"


def test_a_sticky_directory_is_accepted_and_an_open_one_is_not(path: Path) -> None:
    path.parent.chmod(0o1777)
    AuthFile(path).remove()
    path.parent.chmod(0o777)
    with pytest.raises(StartupError, match="open to others"):
        AuthFile(path)
    path.parent.chmod(0o755)
    AuthFile(path).remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_another_user_s_directory_is_refused(path: Path) -> None:
    os.chown(path.parent, 65534, 65534)
    with pytest.raises(StartupError, match="another user"):
        AuthFile(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_another_user_s_file_in_a_sticky_directory_is_refused(path: Path) -> None:
    path.write_text("connmgr-" + "x" * 43 + "\n")
    os.chown(path, 65534, 65534)
    path.parent.chmod(0o1777)
    with pytest.raises(StartupError, match="is not an auth file"):
        AuthFile(path)
    assert path.exists()


def test_an_option_moves_it(start_daemon: StartDaemon, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "auth"
    daemon = start_daemon("--auth-file", str(path))
    assert not daemon.auth_file.exists()
    daemon.auth_file = path
    assert daemon.client.post("/daemon/version")
    daemon.stop()
    assert not path.exists()
