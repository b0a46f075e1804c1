"""Undo as root below a directory of somebody else, who exchanges files and directories meanwhile: the file is put back
where it was, or nowhere."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from connmgr.fs import files
from connmgr.fs.files import FileAttributes
from connmgr.fs.remote import RemoteFileSystem
from connmgr.undo.changes import Changer, Keeper, Undo, Undone
from connmgr.undo.store import ABSENT_FILE, ChangeStore, FileChange
from connmgr_local.transport import LocalTransport
from tests.fs.gates import Patterns
from tests.fs.remote_hosts import SHELLS, Elsewhere, shell_called_sh

STRANGER = 65_500
SECONDS = 20

pytestmark = pytest.mark.needs("machine")


@dataclass
class Scene:
    """A directory of a stranger, ``theirs``, and the system's files, ``ours``; changes made and undone as root."""

    fs: RemoteFileSystem
    store: ChangeStore
    theirs: Path
    ours: Path

    def keeper(self, token: str | None) -> Keeper:
        return Keeper(self.store, Changer("agent", token, (), token), "connection", 1 << 20)

    def plant(self, name: str, mode: int = 0o644) -> Path:
        """Return a new file of the stranger."""
        file = self.theirs / name
        file.write_bytes(b"theirs")
        os.chown(file, STRANGER, STRANGER)
        file.chmod(mode)
        return file

    def remove(self, path: Path, *, recursive: bool = False) -> FileChange:
        with self.keeper("t").keep(self.fs, bytes(path), "fs.remove", follow=False) as keeping:
            files.remove(self.fs, bytes(path), recursive=recursive, timeout=SECONDS)
            keeping.after = ABSENT_FILE
        return self._made(keeping.change)

    def write(self, path: Path, content: bytes) -> FileChange:
        with self.keeper("t").keep(self.fs, bytes(path), "fs.write") as keeping:
            digest = hashlib.sha256(content).hexdigest()
            files.put_back(self.fs, bytes(path), content, FileAttributes(0o644), digest)
        return self._made(keeping.change)

    def change(self, path: Path, mode: int, owner: int) -> FileChange:
        with self.keeper("t").keep(self.fs, bytes(path), "fs.attributes") as keeping:
            files.change_attributes(self.fs, bytes(path), mode, str(owner), str(owner), timeout=SECONDS)
        return self._made(keeping.change)

    def _made(self, change: FileChange) -> FileChange:
        found = self.store.get(change.id)
        assert found
        return found

    def undo(self, change: FileChange, **more: Any) -> Undone:
        return Undo(self.keeper(None), self.fs, self.store.all(), **more).undo(change)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for directory in (theirs, theirs / "sub", ours):
        directory.mkdir()
    for directory in (theirs, theirs / "sub"):
        os.chown(directory, STRANGER, STRANGER)
    (ours / "file").write_bytes(b"ours")
    (ours / "file").chmod(0o600)
    transport = LocalTransport()
    store = ChangeStore(tmp_path / "undo", lambda: bytes(32), total=1 << 20, days=1)
    yield Scene(RemoteFileSystem(transport, bytes(tmp_path)), store, theirs, ours)
    transport.close()


@pytest.fixture
def just(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that has ``act`` done just before an operation of undo, or just after it."""

    def just(name: str, act: Callable[[], object], *, after: bool = False) -> None:
        operation = getattr(files, name)

        def acting(*arguments: Any, **more: Any) -> None:
            if not after:
                act()
            operation(*arguments, **more)
            if after:
                act()

        monkeypatch.setattr(files, name, acting)

    return just


def facts(path: Path) -> tuple[int, int, int]:
    """Return the mode, user and group of a file."""
    status = path.lstat()
    return status.st_mode & 0o7777, status.st_uid, status.st_gid


def linked(path: Path, target: Path) -> Callable[[], None]:
    """Return what puts a link in the place of ``path``."""

    def exchange() -> None:
        if path.exists():
            path.rename(path.with_name("away"))
        path.symlink_to(target)

    return exchange


def test_no_content_is_set_id_for_another_user_than_its_own(scene: Scene, just: Callable[..., None]) -> None:
    file = scene.plant("program", 0o6755)
    change = scene.remove(file)
    found = []
    just("put_back", lambda: found.append(facts(file)), after=True)
    assert scene.undo(change).state == "restored"
    assert found == [(0o6755, STRANGER, STRANGER)] == [facts(file)]


def test_what_is_put_back_over_a_file_of_root_s_is_not_set_id_for_root(scene: Scene) -> None:
    file = scene.plant("program", 0o4755)
    change = scene.remove(file)
    file.write_bytes(b"root's")
    file.chmod(0o4755)
    assert scene.undo(change, force=True).state == "restored"
    assert (file.read_bytes(), facts(file)) == (b"theirs", (0o4755, STRANGER, STRANGER))


def test_a_set_id_bit_is_put_on_a_copy_that_nobody_else_has_open(scene: Scene) -> None:
    file = scene.theirs / "program"
    file.write_bytes(b"root's")
    file.chmod(0o4755)
    change = scene.change(file, 0o777, 0)
    with file.open("r+b") as theirs:
        assert scene.undo(change).state == "restored"
        theirs.write(b"theirs")
    assert (file.read_bytes(), facts(file)) == (b"root's", (0o4755, 0, 0))


def test_a_link_in_the_place_of_a_file_that_was_put_back_gives_no_other_file_away(
    scene: Scene, just: Callable[..., None]
) -> None:
    file = scene.plant("file", 0o666)
    change = scene.remove(file)
    just("put_back", linked(file, scene.ours / "file"), after=True)
    scene.undo(change)
    assert facts(scene.ours / "file") == (0o600, 0, 0)


@pytest.mark.parametrize("content", [b"theirs", b"other"])
def test_a_link_in_the_place_of_a_file_gets_no_mode_and_owner(
    scene: Scene, just: Callable[..., None], content: bytes
) -> None:
    file = scene.plant("file", 0o666)
    change = scene.change(file, 0o600, 0)
    file.write_bytes(content)
    just("change_attributes", linked(file, scene.ours / "file"))
    just("put_back", linked(file, scene.ours / "file"))
    assert scene.undo(change, force=True).state != "restored"
    assert facts(scene.ours / "file") == (0o600, 0, 0)


def test_another_file_in_the_place_of_a_file_gets_no_mode_and_owner(scene: Scene, just: Callable[..., None]) -> None:
    file = scene.plant("file", 0o666)
    change = scene.change(file, 0o600, 0)
    # As a hard link would be.
    other = scene.theirs / "other"
    other.write_bytes(b"other")
    other.chmod(0o600)
    just("change_attributes", lambda: other.rename(file))
    assert scene.undo(change).state == "changed_since"
    assert facts(file) == (0o600, 0, 0)


def test_a_directory_gets_its_mode_and_owner_back_and_a_link_in_its_place_does_not(
    scene: Scene, just: Callable[..., None]
) -> None:
    sub = scene.theirs / "sub"
    sub.chmod(0o777)
    change = scene.change(sub, 0o700, 0)
    assert scene.undo(change).state == "restored"
    assert facts(sub) == (0o777, STRANGER, STRANGER)
    change = scene.change(sub, 0o700, 0)
    just("change_attributes", linked(sub, scene.ours))
    before = facts(scene.ours)
    assert scene.undo(change).state == "changed_since"
    assert facts(scene.ours) == before


@pytest.mark.parametrize("rules", ["", "under rules over paths"])
def test_nothing_is_put_back_through_a_link_in_its_directory_s_place(
    scene: Scene, just: Callable[..., None], tmp_path: Path, rules: str
) -> None:
    if rules:
        scene.fs = replace(scene.fs, gate=Patterns(bytes(tmp_path) + b"/**"))
    file = scene.plant("sub/new")
    change = scene.remove(file)
    just("put_back", linked(scene.theirs / "sub", scene.ours))
    assert scene.undo(change).state == "changed_since"
    assert [path.name for path in scene.ours.iterdir()] == ["file"]


@pytest.mark.parametrize("rules", ["", "under rules over paths"])
def test_nothing_is_removed_through_a_link_in_its_directory_s_place(
    scene: Scene, just: Callable[..., None], tmp_path: Path, rules: str
) -> None:
    if rules:
        scene.fs = replace(scene.fs, gate=Patterns(bytes(tmp_path) + b"/**"))
    change = scene.write(scene.theirs / "sub/file", b"ours")
    just("remove", linked(scene.theirs / "sub", scene.ours))
    assert scene.undo(change).state == "changed_since"
    assert (scene.ours / "file").read_bytes() == b"ours"


def test_a_directory_is_made_again_as_it_was_and_not_through_a_link(scene: Scene, just: Callable[..., None]) -> None:
    inner = scene.theirs / "sub/inner"
    inner.mkdir()
    os.chown(inner, STRANGER, STRANGER)
    inner.chmod(0o2750)
    change = scene.remove(inner)
    assert scene.undo(change).state == "restored"
    assert facts(inner) == (0o2750, STRANGER, STRANGER)
    change = scene.remove(inner)
    just("make_directory", linked(scene.theirs / "sub", scene.ours))
    assert scene.undo(change).state == "changed_since"
    assert [path.name for path in scene.ours.iterdir()] == ["file"]


@pytest.mark.parametrize("shell", SHELLS)
def test_any_shell_puts_back_the_same(scene: Scene, tmp_path: Path, shell: str) -> None:
    transport = Elsewhere(shell_called_sh(tmp_path, shell), os.environ["PATH"], tmp_path)
    scene.fs = replace(scene.fs, transport=transport)
    program, file, sub = scene.plant("program", 0o4711), scene.plant("file", 0o640), scene.theirs / "sub"
    changes = [
        scene.remove(program),
        scene.change(file, 0o4600, 0),
        scene.write(file, b"changed"),
        scene.change(sub, 0o2700, 0),
        scene.remove(sub),
        scene.write(scene.theirs / "new", b"new"),
    ]
    found = [scene.undo(change) for change in reversed(changes)]
    assert [(one.state, one.message) for one in found] == [("restored", None)] * 6
    assert (program.read_bytes(), facts(program)) == (b"theirs", (0o4711, STRANGER, STRANGER))
    assert (file.read_bytes(), facts(file)) == (b"theirs", (0o640, STRANGER, STRANGER))
    assert facts(sub) == (0o755, STRANGER, STRANGER)
    assert not (scene.theirs / "new").exists()
    transport.close()
