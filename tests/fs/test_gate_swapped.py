"""Path rules apply to the files really used, while an attacker replaces them by links to secrets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.files import FileAttributes, receive
from connmgr.fs.remote import RemoteFileSystem
from tests.fs.gates import SECRET, Patterns, archived, facts_of, searched, sums
from tests.fs.remote_hosts import SHELLS, Elsewhere, content_of, shell_called_sh
from tests.fs.swapper import swapped
from tests.fs.test_places import Reached, reached  # noqa: F401
from tests.fs.trees import archive_of, unpack

Work = Callable[[RemoteFileSystem], object]

TIMES = 8
"""Runs of each operation in each of two shells."""

TIMES_EACH = 3
MOST = 20
"""Further runs while none has succeeded."""
OPERATION_SECONDS = 20


@dataclass(frozen=True)
class Attacked:
    """A remote host where ``allowed`` may be used, in which files are exchanged with links to secrets."""

    place: RemoteFileSystem
    folder: Path
    sub: int
    """The inode of the directory ``sub``, under any name."""

    def fill(self) -> None:
        """Recreate what an operation has taken from ``allowed``."""
        with suppress(FileExistsError):
            os.mkdir("deep", dir_fd=self.sub)
        for name in ("file", "deep/inner"):
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=self.sub)
            os.write(descriptor, b"content")
            os.close(descriptor)
        (self.folder / "allowed/mine").write_bytes(b"content")

    def clear(self) -> None:
        """Remove what an operation has created there."""
        for name in ("new", "moved"):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.sub)
        with suppress(FileNotFoundError):
            os.rmdir("made", dir_fd=self.sub)


@pytest.fixture
def attacked(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> Iterator[Attacked]:
    transport = Elsewhere(shell_called_sh(tmp_path, request.param), os.environ["PATH"], tmp_path)
    with under_attack(RemoteFileSystem(transport, bytes(folder)), folder) as found:
        yield found
    transport.close()


@contextmanager
def under_attack(place: RemoteFileSystem, folder: Path) -> Iterator[Attacked]:
    """Create the attacked files in ``folder``, the directory of ``place``."""
    allowed, secret = folder / "allowed", folder / "secret"
    for directory in (allowed / "sub", secret / "deep"):
        directory.mkdir(parents=True)
    for name in ("file", "deep/inner", "nobody-knows"):
        (secret / name).write_bytes(SECRET)
    (allowed / "file").write_bytes(b"content")
    (allowed / "other-file").symlink_to(place.directory + b"/secret/file")
    (allowed / "other-sub").symlink_to(place.directory + b"/secret")
    sub = os.open(allowed / "sub", os.O_RDONLY)
    found = Attacked(replace(place, gate=Patterns(place.directory + b"/allowed/**")), folder, sub)
    found.fill()
    yield found
    os.close(sub)


READING: dict[str, Work] = {
    "read": lambda place: content_of(place, b"allowed/sub/file"),
    "read a file": lambda place: content_of(place, b"allowed/file"),
    "stat": lambda place: files.stat_file(place, b"allowed/sub/nobody-knows", follow=True),
    "list": lambda place: list(files.list_directory(place, b"allowed/sub")),
    "list all": lambda place: list(files.list_directory(place, b"allowed", recursive=True)),
    "glob": lambda place: list(files.matching(place, b"allowed/s*/*")),
    "archive": lambda place: archived(place, b"allowed/sub"),
    "archive all": lambda place: archived(place, b"allowed"),
    "archive a file": lambda place: archived(place, b"allowed/file"),
    "archive members": lambda place: archived(place, b"allowed", b"sub/file", b"sub/deep"),
    "checksum": lambda place: sums(place, b"allowed"),
    "search": lambda place: searched(place, b"allowed", "business"),
}
NEVER = {"stat"}
"""Operations that can only find a secret."""

WRITING: dict[str, Work] = {
    "write": lambda place: receive(place, b"allowed/sub/new", iter([b"x"]), 1, FileAttributes(0o600)),
    "write over": lambda place: receive(place, b"allowed/sub/file", iter([b"x"]), 1, FileAttributes()),
    "write a file": lambda place: receive(place, b"allowed/file", iter([b"x"]), 1, FileAttributes()),
    "mkdir": lambda place: files.make_directory(
        place, b"allowed/sub/made", 0o700, parents=False, timeout=OPERATION_SECONDS
    ),
    "mkdir below": lambda place: files.make_directory(
        place, b"allowed/sub/made", None, parents=True, timeout=OPERATION_SECONDS
    ),
    "move in": lambda place: files.move(
        place, b"allowed/mine", b"allowed/sub/moved", overwrite=True, timeout=OPERATION_SECONDS
    ),
    "move out": lambda place: files.move(
        place, b"allowed/sub/file", b"allowed/mine", overwrite=True, timeout=OPERATION_SECONDS
    ),
    "move over": lambda place: files.move(
        place, b"allowed/mine", b"allowed/sub/file", overwrite=True, timeout=OPERATION_SECONDS
    ),
    "remove": lambda place: files.remove(place, b"allowed/sub/file", recursive=False, timeout=OPERATION_SECONDS),
    "remove all": lambda place: files.remove(place, b"allowed/sub/deep", recursive=True, timeout=OPERATION_SECONDS),
    "extract": lambda place: unpack(place, b"allowed/sub", archive_of(("new", {}))),
    "extract below": lambda place: unpack(place, b"allowed", archive_of(("sub/new", {}), ("sub/file", {}))),
}


def in_two_shells(works: Iterable[str]) -> pytest.MarkDecorator:
    """Run each of ``works`` in two shells, and the next one in the next two."""
    shells = cycle(SHELLS)
    runs = [(next(shells), name) for name in works for _ in range(2)]
    pairs = [pytest.param(*shell.values, name, marks=shell.marks) for shell, name in runs]
    return pytest.mark.parametrize(("attacked", "name"), pairs, indirect=["attacked"])


@in_two_shells(READING)
def test_a_swapped_path_reveals_no_secret(attacked: Attacked, name: str) -> None:
    read_under_attack(attacked, name, TIMES)


@in_two_shells(WRITING)
def test_a_swapped_path_changes_nothing_elsewhere(attacked: Attacked, name: str) -> None:
    write_under_attack(attacked, name, TIMES)


@pytest.mark.parametrize(
    "reached",
    [
        pytest.param("ssh to oneself", marks=pytest.mark.needs("sshd", "bash")),
        pytest.param("sudo over ssh", marks=pytest.mark.needs("machine", "sudo", "su", "sshd", "bash")),
        pytest.param("su on a terminal", marks=pytest.mark.needs("machine", "sudo", "su", "sshd", "bash")),
    ],
    indirect=True,
)
def test_nor_over_other_ways(reached: Reached) -> None:  # noqa: F811
    with under_attack(reached.place, reached.directory) as attacked:
        for path in [reached.directory, *reached.directory.rglob("*")]:
            os.chown(path, reached.uid, reached.uid, follow_symlinks=False)
        for name in READING:
            read_under_attack(attacked, name, TIMES_EACH)
        for name in WRITING:
            write_under_attack(attacked, name, TIMES_EACH)


def read_under_attack(attacked: Attacked, name: str, times: int) -> None:
    """Read while links are exchanged, and fail if a part of a secret is returned."""
    known = {SECRET, hashlib.sha256(SECRET).hexdigest().encode(), b"nobody-knows"}
    done = 0
    with swapping(attacked.folder / "allowed", name):
        for turn in range(MOST * times):
            if turn >= times and (done or name in NEVER):
                break
            with suppress(errors.RequestError, errors.OperationError):
                answer = READING[name](attacked.place)
                found = answer if isinstance(answer, bytes) else repr(answer).encode()
                assert not [one for one in known if one in found], f"{name} brought {found!r}"
                done += 1
    assert done or name in NEVER, "nothing was read at all"


def write_under_attack(attacked: Attacked, name: str, times: int) -> None:
    """Write while links are exchanged, and fail if a secret changes."""
    before = facts_of(attacked.folder / "secret")
    done = 0
    with swapping(attacked.folder / "allowed", name):
        for turn in range(MOST * times):
            if turn >= times and done:
                break
            attacked.fill()
            with suppress(errors.RequestError, errors.OperationError):
                WRITING[name](attacked.place)
                done += 1
            attacked.clear()
    assert facts_of(attacked.folder / "secret") == before
    assert done, "nothing was done at all"


def swapping(allowed: Path, name: str) -> AbstractContextManager[None]:
    """Exchange the file or directory that the operation uses with a link to a secret, again and again."""
    what = "file" if name.endswith("a file") else "sub"
    return swapped(allowed / what, allowed / f"other-{what}")
