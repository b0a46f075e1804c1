"""Writing on this machine is atomic, whatever is in the way."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.bodies import Blobs
from connmgr.fs.listing import RUN_ENTRIES
from connmgr.fs.remote import RemoteFileSystem
from connmgr_local.transport import LocalTransport
from tests.deadlines import eventually_equal
from tests.fs.conftest import Write
from tests.fs.remote_hosts import Elsewhere, content_of, litter, names_in, stored
from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.places import LOCAL, Places

MEGABYTE = 1 << 20
LARGE_DIRECTORY = 2 * RUN_ENTRIES + 1
"""Files whose listing is sorted in three runs."""
Mount = Callable[..., None]


@pytest.fixture
def mount(folder: Path) -> Iterator[Mount]:
    """A function that mounts something into ``folder`` until the test ends: ``mount("-t", "tmpfs", ..., "name")``."""
    mounted: list[Path] = []

    def put(*arguments: str) -> None:
        target = folder / arguments[-1]
        subprocess.run(["mount", *arguments[:-1], str(target)], check=True, timeout=20)
        mounted.append(target)

    yield put
    for target in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(target)], check=True, timeout=20)


@pytest.fixture
def own_home(running_machine: Machine, places: Places) -> Iterator[tuple[RemoteFileSystem, Path, Inhabitant]]:
    """The home directory of an ordinary user: as the user sees it, and as the tests do."""
    user = running_machine.add_user()
    with places.reach(LOCAL, user) as transport:
        yield RemoteFileSystem(transport, user.home.encode()), running_machine.path(user.home), user


@pytest.mark.needs("machine")
def test_a_full_disk_leaves_the_old_file(here: RemoteFileSystem, write: Write, folder: Path, mount: Mount) -> None:
    (folder / "small").mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", "small")
    write(here, b"small/file", b"1" * 700_000)
    for content in (b"2" * 700_000, b"2" * (100 * MEGABYTE)):
        with pytest.raises(errors.NoSpace):
            write(here, b"small/file", content)
        with pytest.raises(errors.NoSpace):
            write(here, b"small/new", content)
        assert names_in(folder / "small") == ["file"]
        assert content_of(here, b"small/file") == b"1" * 700_000
    write(here, b"small/file", b"3")
    assert content_of(here, b"small/file") == b"3"


@pytest.mark.needs("machine")
def test_a_full_disk_has_no_room_for_directories_either(here: RemoteFileSystem, folder: Path, mount: Mount) -> None:
    (folder / "small").mkdir()
    mount("-t", "tmpfs", "-o", "nr_inodes=1", "tmpfs", "small")
    with pytest.raises(errors.NoSpace):
        files.make_directory(here, b"small/x", None, parents=False, timeout=20)


@pytest.mark.needs("machine")
def test_a_read_only_file_system(here: RemoteFileSystem, write: Write, folder: Path, mount: Mount) -> None:
    (folder / "fixed").mkdir()
    mount("-t", "tmpfs", "tmpfs", "fixed")
    write(here, b"fixed/file", b"content")
    subprocess.run(["mount", "-o", "remount,ro", str(folder / "fixed")], check=True, timeout=20)
    for action in (
        lambda: write(here, b"fixed/file", b"new"),
        lambda: write(here, b"fixed/new", b"new"),
        lambda: files.remove(here, b"fixed/file", recursive=True, timeout=20),
        lambda: files.make_directory(here, b"fixed/new", None, parents=True, timeout=20),
        lambda: files.move(here, b"fixed/file", b"fixed/new", overwrite=False, timeout=20),
    ):
        with pytest.raises(errors.PermissionDenied):
            action()
    assert content_of(here, b"fixed/file") == b"content"


@pytest.mark.needs("machine")
def test_a_file_that_is_a_mount_point_is_written_in_place(
    here: RemoteFileSystem, write: Write, folder: Path, mount: Mount
) -> None:
    for name in ("outside", "inside"):
        (folder / name).write_bytes(b"old, and longer")
    mount("--bind", str(folder / "outside"), "inside")
    write(here, b"inside", b"new")
    assert (folder / "outside").read_bytes() == b"new"
    assert litter(folder) == []


def test_extended_attributes_are_kept_and_other_names_of_a_file_keep_the_old_content(
    here: RemoteFileSystem, write: Write, folder: Path
) -> None:
    (folder / "file").write_bytes(b"old")
    (folder / "name").hardlink_to(folder / "file")
    os.setxattr(folder / "file", "user.connmgr", b"kept")
    write(here, b"file", b"new")
    assert os.getxattr(folder / "file", "user.connmgr") == b"kept"
    assert (folder / "name").read_bytes() == b"old"


@pytest.mark.needs("machine")
def test_what_a_user_may_write(own_home: tuple[RemoteFileSystem, Path, Inhabitant], write: Write) -> None:
    place, home, user = own_home
    (home / "read only").write_bytes(b"old")
    (home / "read only").chmod(0o444)
    os.chown(home / "read only", user.uid, user.uid)
    (home / "root's").write_bytes(b"old")
    (home / "everybody's").write_bytes(b"old")
    (home / "everybody's").chmod(0o666)
    (home / "closed").mkdir(0o700)
    (home / "sticky").mkdir(0o1777)
    (home / "sticky").chmod(0o1777)
    (home / "sticky" / "everybody's").touch(0o666)
    (home / "sticky" / "everybody's").chmod(0o666)
    for name in (b"read only", b"root's", b"closed/file", b"/etc/motd", b"/new"):
        with pytest.raises(errors.PermissionDenied):
            write(place, name, b"new")
    for path in (home / "everybody's", home / "sticky" / "everybody's"):
        # A new file could not keep the owner, so the old one was overwritten.
        before = path.stat()
        write(place, bytes(path.relative_to(home)), b"new")
        after = path.stat()
        assert path.read_bytes() == b"new"
        assert (before.st_ino, before.st_uid, before.st_mode) == (after.st_ino, 0, after.st_mode)
    assert (home / "read only").read_bytes() == (home / "root's").read_bytes() == b"old"
    assert litter(home) == litter(home / "sticky") == []


@pytest.mark.needs("machine")
def test_what_a_user_may_see(own_home: tuple[RemoteFileSystem, Path, Inhabitant]) -> None:
    place, home, _ = own_home
    (home / "closed").mkdir(0o700)
    (home / "closed" / "file").touch()
    (home / "listed").mkdir()
    (home / "listed").chmod(0o744)
    (home / "passed").mkdir()
    (home / "passed").chmod(0o711)
    (home / "passed" / "file").write_bytes(b"content")
    (home / "secret").write_bytes(b"secret")
    (home / "secret").chmod(0o600)
    for action in (
        lambda: files.list_directory(place, b"closed"),
        lambda: files.list_directory(place, b"listed"),
        lambda: files.list_directory(place, b"passed"),
        lambda: content_of(place, b"closed/file"),
        lambda: files.stat_file(place, b"closed/file", follow=True),
        lambda: content_of(place, b"secret"),
        lambda: files.remove(place, b"closed", recursive=True, timeout=20),
        lambda: files.move(place, b"closed/file", b"x", overwrite=False, timeout=20),
    ):
        with pytest.raises(errors.PermissionDenied):
            action()
    assert content_of(place, b"passed/file") == b"content"
    assert files.stat_file(place, b"secret", follow=True).size == len(b"secret")


@pytest.mark.needs("machine")
def test_an_owner_of_the_directory_cannot_turn_root_s_write_against_another_file(
    own_home: tuple[RemoteFileSystem, Path, Inhabitant], tmp_path: Path, blobs: Blobs
) -> None:
    _, home, user = own_home
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    victim.chmod(0o600)
    (home / "file").write_bytes(b"old")
    os.chown(home / "file", user.uid, user.uid)
    transport = LocalTransport()
    with stored(blobs, b"x" * 300_000) as blob:
        pieces = blob.pieces()

        def swapping() -> Iterator[bytes]:
            # The temporary file exists now, and the directory's owner replaces it by a link.
            (temporary,) = litter(home)
            (home / temporary).unlink()
            (home / temporary).symlink_to(victim)
            yield from pieces

        blob.pieces = swapping  # type: ignore[method-assign]
        with pytest.raises(errors.FileOperationFailed, match="Somebody else replaced the file"):
            files.write(RemoteFileSystem(transport, bytes(home)), b"file", blob, None)
    transport.close()
    after = victim.stat()
    assert (victim.read_bytes(), after.st_uid, oct(after.st_mode & 0o7777)) == (b"untouched", 0, "0o600")


def test_a_damaged_transfer_leaves_the_old_file(
    here: RemoteFileSystem, write: Write, blobs: Blobs, folder: Path
) -> None:
    write(here, b"file", b"old")
    for damage in (b"new content ", b"new", b"new-content", b""):
        with stored(blobs, b"new content") as blob:
            blob.pieces = lambda damage=damage: iter([damage])  # type: ignore[method-assign,misc]
            with pytest.raises(errors.TransferFailed, match="did not arrive whole"):
                files.write(here, b"file", blob, None)
    assert content_of(here, b"file") == b"old"
    eventually_equal(lambda: litter(folder), [], "what did not arrive whole is left")


def test_several_writers_of_one_file_leave_one_of_theirs(here: RemoteFileSystem, blobs: Blobs, folder: Path) -> None:
    contents = [bytes([number]) * (MEGABYTE + number) for number in range(8)]
    failures: list[BaseException] = []

    def put(content: bytes) -> None:
        try:
            with stored(blobs, content) as blob:
                for _ in range(3):
                    files.write(here, b"file", blob, None)
        except BaseException as error:  # noqa: BLE001 - told by the assertion below
            failures.append(error)

    writers = [threading.Thread(target=put, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if (folder / "file").exists():
            assert content_of(here, b"file") in contents, "a reader saw a mixture"
    for writer in writers:
        writer.join()
    assert failures == []
    assert names_in(folder) == ["file"]


def test_paths_as_long_as_the_system_has_them(here: RemoteFileSystem, write: Write, folder: Path) -> None:
    directory = b"/".join([b"d" * 250] * 15)
    files.make_directory(here, directory, None, parents=True, timeout=20)
    path = directory + b"/" + "ü".encode() * 100
    assert len(bytes(folder) + path) > 3900
    write(here, path, b"content")
    assert content_of(here, path) == b"content"
    assert files.stat_file(here, path, follow=True).size == 7
    for long in (b"x" * 256, b"/".join([b"d" * 250] * 20), b"x" * 8000):
        for action in (lambda long=long: content_of(here, long), lambda long=long: write(here, long, b"")):  # type: ignore[misc]
            with pytest.raises((errors.FileOperationFailed, errors.NoSuchDirectory)):
                action()
    files.remove(here, b"d" * 250, recursive=True, timeout=20)
    assert names_in(folder) == []


def test_a_home_that_is_not_known(tmp_path: Path, folder: Path, write: Write) -> None:
    sh = tmp_path / "without home"
    sh.write_text('#!/bin/sh\nunset HOME\nexec /bin/sh "$@"\n')
    sh.chmod(0o755)
    transport = Elsewhere(sh, os.environ["PATH"], tmp_path)
    with pytest.raises(errors.NoSuchDirectory):
        write(RemoteFileSystem(transport, bytes(folder)), b"~/x", b"not to be written to /x")
    transport.close()


def test_a_large_directory(here: RemoteFileSystem, write: Write, folder: Path) -> None:
    names = [b"%05d" % number for number in range(LARGE_DIRECTORY)]
    first, *others = (folder / os.fsdecode(name) for name in names)
    first.touch()
    for other in others:
        os.link(first, other)
    write(here, b"one more", b"content")
    entries = files.list_directory(here, b".")
    assert [entry.name for entry in entries] == [*names, b"one more"]


def test_times_beyond_the_calendar(here: RemoteFileSystem, folder: Path) -> None:
    (folder / "old").touch()
    os.utime(folder / "old", (-86400, -86400))
    (folder / "new").touch()
    os.utime(folder / "new", ns=(1_700_000_000_123_456_000,) * 2)
    shm = Path("/dev/shm") / f"connmgr-{os.getpid()}"
    shm.touch()
    try:
        os.utime(shm, (1 << 40, 1 << 40))
        assert files.stat_file(here, bytes(shm), follow=True).modified.year in {9999, 2446}
    finally:
        shm.unlink()
    assert files.stat_file(here, b"old", follow=True).modified.isoformat() == "1969-12-31T00:00:00+00:00"
    assert files.stat_file(here, b"new", follow=True).modified.isoformat() == "2023-11-14T22:13:20.123456+00:00"
