"""Every operation in every shell that may be /bin/sh, with GNU's tools, with busybox's, and with the fewest.

Each test runs in each shell with one of the three sets, which changes from test to test.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import files, remote
from connmgr.fs.bodies import Blobs, Digest
from connmgr.fs.files import NOTHING, FileAttributes, receive
from connmgr.fs.remote import DISK_BLOCK_BYTES, RemoteFileSystem
from tests.deadlines import eventually_equal
from tests.fs.conftest import Write
from tests.fs.remote_hosts import (
    NECESSARY,
    ODD_NAMES,
    SHELLS,
    Elsewhere,
    busybox_tools,
    chosen_tools,
    content_of,
    litter,
    names_in,
    shell_called_sh,
    stored,
    tools_and_shells,
)
from tests.jobs.test_places import Mounted

ALL_BYTES = bytes(range(256)) * 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        tests = [
            name for name, test in vars(metafunc.module).items() if "place" in getattr(test, "__annotations__", ())
        ]
        pairs = tools_and_shells(tests.index(metafunc.function.__name__))
        metafunc.parametrize(("tools", "place"), pairs, indirect=True)


@pytest.fixture
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The remote host's PATH: GNU's tools, busybox's, or those of every system and stat."""
    if request.param == "GNU":
        return os.environ["PATH"]
    return busybox_tools(tmp_path) if request.param == "busybox" else chosen_tools(tmp_path, [*NECESSARY, "stat"])


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, folder: Path, tools: str) -> Iterator[RemoteFileSystem]:
    transport = Elsewhere(shell_called_sh(tmp_path, request.param), tools, tmp_path)
    yield RemoteFileSystem(transport, bytes(folder))
    transport.close()


def test_files_of_any_name_come_back_as_they_were(place: RemoteFileSystem, write: Write, folder: Path) -> None:
    for number, name in enumerate(ODD_NAMES):
        content = ALL_BYTES[number:]
        write(place, name, content)
        assert (folder / os.fsdecode(name)).read_bytes() == content, name
        assert content_of(place, name) == content, name
        entry = files.stat_file(place, name, follow=True)
        assert (entry.name, entry.type, entry.size) == (name, "file", len(content))
    assert [entry.name for entry in files.list_directory(place, b".")] == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        files.move(place, name, b"-" + name[:200], overwrite=False, timeout=20)
        files.remove(place, b"-" + name[:200], recursive=False, timeout=20)
    assert names_in(folder) == []


@pytest.mark.parametrize("size", [2 * DISK_BLOCK_BYTES, 5 * DISK_BLOCK_BYTES + 1, 16 * DISK_BLOCK_BYTES])
def test_files_of_many_blocks_arrive_whole_or_not_at_all(
    place: RemoteFileSystem, tools: str, write: Write, blobs: Blobs, folder: Path, size: int
) -> None:
    content = random.Random(size).randbytes(size)
    write(place, b"file", content)
    assert (folder / "file").read_bytes() == content
    if shutil.which("sha256sum", path=tools):
        with stored(blobs, content[::-1]) as blob:
            blob.pieces = lambda: iter([content])  # type: ignore[method-assign,misc]
            with pytest.raises(errors.TransferFailed, match="did not arrive whole"):
                files.write(place, b"file", blob, None)
        assert (folder / "file").read_bytes() == content
    assert names_in(folder) == ["file"]


@pytest.mark.parametrize("size", [1 << 20, 12 << 20, 33 << 20])
def test_a_large_file_of_a_known_size_has_it_or_is_not_written(here: RemoteFileSystem, folder: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    pieces = [content[at : at + 300_001] for at in range(0, size, 300_001)]
    digest = hashlib.sha256(content).hexdigest()
    for told in (size, None):
        assert receive(here, b"file", iter(pieces), told, FileAttributes()) == (size, digest)
        assert (folder / "file").read_bytes() == content
    for told in (size - 1, size + 1):
        with pytest.raises(errors.TransferFailed, match="did not arrive whole"):
            receive(here, b"file", iter([*pieces]), told, FileAttributes())
    eventually_equal(lambda: names_in(folder), ["file"], "something stays of what did not come whole")


@pytest.mark.parametrize("size", [8 * DISK_BLOCK_BYTES, 8 * DISK_BLOCK_BYTES + 1, 9 * DISK_BLOCK_BYTES + 300])
def test_files_of_several_portions_arrive_whole_or_not_at_all(
    place: RemoteFileSystem, tools: str, folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PORTION_BYTES", 4 * DISK_BLOCK_BYTES)
    content = random.Random(size).randbytes(size)
    pieces = [content[at : at + 100_001] for at in range(0, size, 100_001)]
    for path in (b"file", b"file", b"new"):
        digest = hashlib.sha256(content).hexdigest()
        assert receive(place, path, iter(pieces), size, FileAttributes()) == (size, digest)
        assert (folder / path.decode()).read_bytes() == content
    if shutil.which("sha256sum", path=tools):
        monkeypatch.setattr(Digest, "close", lambda _: hashlib.sha256(b"other").hexdigest())
        with pytest.raises(errors.TransferFailed, match="did not arrive whole"):
            receive(place, b"file", iter([content[::-1]]), size, FileAttributes())
    assert (folder / "file").read_bytes() == content
    eventually_equal(lambda: names_in(folder), ["file", "new"], "what did not arrive whole is left")


def test_a_large_file_is_read_once_on_the_disk_while_it_arrives(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PORTION_BYTES", 4 * DISK_BLOCK_BYTES)
    tools = chosen_tools(tmp_path, [*NECESSARY, "dd", "stat"])
    spoiled, asked = tmp_path / "spoiled", tmp_path / "asked"
    for name in ("sha256sum", "openssl"):
        (Path(tools) / name).unlink(missing_ok=True)
    real = shutil.which("sha256sum")
    summing = Path(tools) / "sha256sum"
    summing.write_text(
        f'#!/bin/sh\necho "$#" >>{asked}\n'
        f'if [ $# = 0 ] && [ -e {spoiled} ]; then {real} >/dev/null; echo wrong; else exec {real} "$@"; fi\n'
    )
    summing.chmod(0o755)
    transport = Elsewhere(Path("/bin/sh"), tools, tmp_path)
    content = os.urandom(9 * DISK_BLOCK_BYTES + 7)
    receive(RemoteFileSystem(transport, bytes(folder)), b"file", iter([content]), len(content), FileAttributes())
    assert asked.read_text().split() == ["0"], "the file was summed in another way than by its portions"
    asked.unlink()
    spoiled.touch()
    receive(RemoteFileSystem(transport, bytes(folder)), b"file", iter([content]), len(content), FileAttributes())
    assert asked.read_text().split() == ["0", "1"], "a sum that differs was not computed again of the whole file"
    assert (folder / "file").read_bytes() == content
    transport.close()


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_disk_that_fails_while_a_large_file_arrives_is_told(
    failing: int, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PORTION_BYTES", 4 * DISK_BLOCK_BYTES)
    tools, flushes = chosen_tools(tmp_path, [*NECESSARY, "dd", "stat", "sha256sum"]), tmp_path / "flushes"
    sync = Path(tools) / "sync"
    sync.unlink(missing_ok=True)
    # The kernel tells a failed write to the first who flushes, and to nobody afterwards.
    sync.write_text(
        f'#!/bin/sh\n[ "$1" != --help ] || {{ echo "sync [FILE]..."; exit; }}\necho >>{flushes}\n'
        f'[ "$(wc -l <{flushes})" = {failing} ] || exit 0\necho "sync: $2: Input/output error" >&2; exit 1\n'
    )
    sync.chmod(0o755)
    transport = Elsewhere(Path("/bin/sh"), tools, tmp_path)
    content = os.urandom(10 * DISK_BLOCK_BYTES)
    place = RemoteFileSystem(transport, bytes(folder))
    with pytest.raises(errors.FileOperationFailed, match="Input/output error"):
        receive(place, b"file", iter([content]), len(content), FileAttributes())
    assert names_in(folder) == []
    receive(place, b"file", iter([content]), len(content), FileAttributes())
    assert (folder / "file").read_bytes() == content
    transport.close()


@pytest.mark.parametrize("portion", [DISK_BLOCK_BYTES, remote.PORTION_BYTES])
def test_where_nothing_computes_a_checksum_a_large_file_arrives_all_the_same(
    portion: int, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PORTION_BYTES", 16 * portion)
    tools = chosen_tools(tmp_path, [*NECESSARY, "dd", "stat"])
    transport = Elsewhere(Path("/bin/sh"), tools, tmp_path)
    content = os.urandom((8 << 20) + 5)
    receive(RemoteFileSystem(transport, bytes(folder)), b"file", iter([content]), len(content), FileAttributes())
    assert (folder / "file").read_bytes() == content
    transport.close()


@pytest.mark.parametrize("size", [1 << 20, 12 << 20, 33 << 20])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="nothing is always full")
def test_a_full_disk_is_told(size: int, tmp_path: Path, folder: Path) -> None:
    tools = chosen_tools(tmp_path, [*NECESSARY, "stat", "sha256sum"])
    false = Path(tools) / "dd"
    false.write_text(
        '#!/bin/sh\ncase "$*" in count=0*) exit;; *if=*) exec /bin/dd "$@";; esac\nexec /bin/dd "$@" of=/dev/full\n'
    )
    false.chmod(0o755)
    transport = Elsewhere(Path("/bin/sh"), tools, tmp_path)
    with pytest.raises(errors.NoSpace):
        receive(RemoteFileSystem(transport, bytes(folder)), b"file", iter([bytes(size)]), size, FileAttributes())
    assert names_in(folder) == []
    transport.close()


def test_directories_of_any_name(place: RemoteFileSystem, folder: Path) -> None:
    for name in ODD_NAMES[::3]:
        files.make_directory(place, name, 0o750, parents=False, timeout=20)
        assert (folder / os.fsdecode(name)).stat().st_mode & 0o7777 == 0o750
        with pytest.raises(errors.FileExists):
            files.make_directory(place, name, None, parents=False, timeout=20)
        files.make_directory(place, name, None, parents=True, timeout=20)
        files.make_directory(place, name + b"/a/b/", None, parents=True, timeout=20)
        with pytest.raises(errors.DirectoryNotEmpty):
            files.remove(place, name, recursive=False, timeout=20)
        files.remove(place, name + b"/a/b", recursive=False, timeout=20)
        files.remove(place, name, recursive=True, timeout=20)
    assert names_in(folder) == []


def test_mode_is_kept_set_or_the_umask_s(place: RemoteFileSystem, write: Write, folder: Path) -> None:
    mask = os.umask(0o027)
    try:
        write(place, b"by umask", b"")
        write(place, b"by mode", b"", 0o4711)
        write(place, b"by mode", b"again", 0o600)
    finally:
        os.umask(mask)
    modes = {path.name: oct(path.stat().st_mode & 0o7777) for path in folder.iterdir()}
    assert modes == {"by umask": "0o640", "by mode": "0o4711"}


def test_only_what_was_read_is_replaced(place: RemoteFileSystem, write: Write, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue("folder")
    of_old, of_new = (hashlib.sha256(content).hexdigest() for content in (b"old", b"new"))
    write(place, b"file", b"old", 0o640, NOTHING)
    with pytest.raises(errors.FileExists):
        write(place, b"file", b"other", 0o640, NOTHING)
    (folder / "link").symlink_to("nowhere")
    with pytest.raises(errors.FileExists):
        write(place, b"link", b"other", None, NOTHING)
    if request.node.callspec.id.startswith("few"):
        with pytest.raises(errors.FileOperationFailed, match="SHA-256"):
            write(place, b"file", b"new", None, of_old)
        assert content_of(place, b"file") == b"old"
        return
    write(place, b"file", b"new", None, of_old)
    with pytest.raises(errors.FileChanged):
        write(place, b"file", b"other", None, of_old)
    with pytest.raises(errors.FileChanged):
        write(place, b"missing", b"other", None, of_old)
    assert content_of(place, b"file") == b"new"
    assert files.stat_file(place, b"file", follow=False).mode == 0o640
    write(place, b"file", b"", None, of_new)
    assert names_in(folder) == ["file", "link"], "nothing is left behind"


def test_a_link_is_written_through_and_otherwise_taken_for_itself(
    place: RemoteFileSystem, write: Write, folder: Path
) -> None:
    (folder / "target\n").write_bytes(b"old")
    (folder / "link").symlink_to("target\n")
    write(place, b"link", b"new")
    assert (folder / "link").is_symlink()
    assert (folder / "target\n").read_bytes() == content_of(place, b"link") == b"new"
    described = files.stat_file(place, b"link", follow=False)
    assert (described.type, described.target) == ("link", b"target\n")
    assert files.stat_file(place, b"link", follow=True).type == "file"
    assert [entry.type for entry in files.list_directory(place, b".")] == ["link", "file"]
    files.remove(place, b"link", recursive=True, timeout=20)
    assert names_in(folder) == ["target\n"]


def test_a_link_to_a_directory_is_removed_alone(place: RemoteFileSystem, folder: Path) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "content").touch()
    for path in (b"link", b"link/", b"link//"):
        (folder / "link").symlink_to("kept")
        files.remove(place, path, recursive=True, timeout=20)
        assert names_in(folder) == ["kept"]
    assert names_in(folder / "kept") == ["content"]


@pytest.mark.parametrize("path", [b"/", b"//", b"/./", b"/tmp/..", b"/proc/self/root", b"/proc/self/root/"])
def test_the_root_directory_is_never_removed(here: RemoteFileSystem, path: bytes) -> None:
    # Without rm in the PATH, the test would be as harmless in the shells above.
    with pytest.raises(errors.PermissionDenied):
        files.remove(here, path, recursive=False, timeout=20)


def test_leftovers_of_a_killed_writer_are_cleared_and_files_of_a_living_one_are_not(
    place: RemoteFileSystem, write: Write, folder: Path
) -> None:
    host = os.uname().nodename
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        dead, alive, undead = (f".connmgr-{pid}-{host}-x" for pid in (4194999, os.getpid(), zombie.pid))
        for name in (dead, undead, alive, ".connmgr-4194999-other-x"):
            (folder / name).touch()
        write(place, b"file", b"content")
    assert litter(folder) == sorted([alive, ".connmgr-4194999-other-x"])


def test_leftovers_of_a_writer_elsewhere_are_cleared_after_an_hour(
    here: RemoteFileSystem, write: Write, folder: Path
) -> None:
    for name, age in ((".connmgr-1-other-x", 3000), (".connmgr-2-other-x", 4000)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    write(here, b"file", b"content")
    assert litter(folder) == [".connmgr-1-other-x"]


def test_a_non_file_is_distinguished_from_a_missing_one(place: RemoteFileSystem, write: Write, folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "directory").mkdir()
    (folder / "loop").symlink_to("loop")
    for name in (b"fifo", b"directory", b"directory/", b".", b"..", b"/dev/null", b"/"):
        with pytest.raises(errors.WrongFileType):
            content_of(place, name)
        with pytest.raises(errors.WrongFileType):
            write(place, name, b"content")
    for name in (b"missing", b"missing/"):
        with pytest.raises(errors.NoSuchFile, match=rf"^{folder}/{name.decode()}: File does not exist$"):
            content_of(place, name)
        with pytest.raises(errors.NoSuchFile):
            files.stat_file(place, name, follow=False)
    with pytest.raises(errors.NoSuchDirectory):
        write(place, b"missing/file", b"content")
    with pytest.raises(errors.FileOperationFailed, match="symbolic links"):
        content_of(place, b"loop")
    assert names_in(folder) == ["directory", "fifo", "loop"]


def test_moving_gives_way_to_nothing_unasked(place: RemoteFileSystem, folder: Path) -> None:
    (folder / "new").write_bytes(b"new")
    (folder / "old").write_bytes(b"old")
    (folder / "directory").mkdir()
    (folder / "link").symlink_to("directory")
    with pytest.raises(errors.FileExists):
        files.move(place, b"new", b"old", overwrite=False, timeout=20)
    for directory in (b"directory", b"directory/", b"link"):
        with pytest.raises(errors.FileExists):
            files.move(place, b"new", directory, overwrite=True, timeout=20)
    files.move(place, b"new", bytes(folder) + b"/old", overwrite=True, timeout=20)
    assert (folder / "old").read_bytes() == b"new"
    assert names_in(folder / "directory") == []


def test_paths_begin_where_they_say(place: RemoteFileSystem, write: Write, tmp_path: Path, folder: Path) -> None:
    write(place, b"~/in home", b"1")
    write(place, b"../beside", b"2")
    write(place, bytes(tmp_path) + b"/absolute", b"3")
    write(place, b"./~", b"4")
    read = [(tmp_path / name).read_bytes() for name in ("in home", "beside", "absolute", "folder/~")]
    assert read == [b"1", b"2", b"3", b"4"]
    folder.rename(tmp_path / "gone")
    with pytest.raises(errors.NoSuchDirectory):
        content_of(place, b"anything")
    assert content_of(place, b"~/in home") == b"1"


def test_files_with_a_false_size_are_read_whole(place: RemoteFileSystem) -> None:
    assert content_of(place, b"/proc/self/cmdline").startswith(b"cat\0") or content_of(place, b"/proc/version")
    assert content_of(place, b"/sys/kernel/mm/transparent_hugepage/enabled").endswith(b"\n")


def test_a_temporary_directory_is_private_and_another_each_time(place: RemoteFileSystem) -> None:
    made = [Path(os.fsdecode(files.make_temporary(place))) for _ in range(2)]
    try:
        assert len(set(made)) == 2
        assert [path.stat().st_mode & 0o7777 for path in made] == [0o700, 0o700]
    finally:
        for path in made:
            path.rmdir()


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("kind", ["GNU", pytest.param("busybox", marks=pytest.mark.needs("busybox")), "few"])
def test_a_system_without_proc_has_files_all_the_same(tmp_path: Path, folder: Path, write: Write, kind: str) -> None:
    paths = {
        "GNU": lambda _: os.environ["PATH"],
        "busybox": busybox_tools,
        "few": lambda _: chosen_tools(tmp_path, [*NECESSARY, "stat"]),
    }
    transport = Mounted("mount -t tmpfs tmpfs /proc", paths[kind](tmp_path), tmp_path)
    place = RemoteFileSystem(transport, bytes(folder))
    for content in (b"first", b"second, and longer"):
        write(place, b"file", content)
        assert content_of(place, b"file") == content
    (folder / "file").chmod(0o640)
    write(place, b"file", b"third")
    assert ((folder / "file").stat().st_mode & 0o7777, names_in(folder)) == (0o640, ["file"])
    transport.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_missing_program_is_named(tmp_path: Path, folder: Path, shell: str) -> None:
    tools = chosen_tools(tmp_path, [name for name in NECESSARY if name != "mkdir"])
    transport = Elsewhere(shell_called_sh(tmp_path, shell), tools, tmp_path)
    place = RemoteFileSystem(transport, bytes(folder))
    with pytest.raises(errors.FileOperationFailed, match="The program mkdir is missing there"):
        files.make_directory(place, b"new", None, parents=False, timeout=20)
    transport.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_without_stat_files_are_written_in_place_and_cannot_be_described(
    shell: str, tmp_path: Path, folder: Path, write: Write
) -> None:
    tools = chosen_tools(tmp_path, NECESSARY)
    transport = Elsewhere(shell_called_sh(tmp_path, shell), tools, tmp_path)
    place = RemoteFileSystem(transport, bytes(folder))
    (folder / "file").write_bytes(b"old content")
    (folder / "file").chmod(0o751)
    before = (folder / "file").stat()
    write(place, b"file", b"new")
    assert content_of(place, b"file") == b"new"
    after = (folder / "file").stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    write(place, b"fresh", b"fresh", 0o640)
    assert (folder / "fresh").stat().st_mode & 0o7777 == 0o640
    for look in (lambda: files.list_directory(place, b"."), lambda: files.stat_file(place, b"file", follow=True)):
        with pytest.raises(errors.FileOperationFailed, match="stat is not installed there"):
            look()
    assert litter(folder) == []
    transport.close()
