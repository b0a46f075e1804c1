"""What callers with path rules can do and see in the allowed directory."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.files import NOTHING, FileAttributes, receive
from connmgr.fs.remote import RemoteFileSystem
from tests.fs.conftest import Write
from tests.fs.gates import REFUSAL, SECRET, Patterns, archived, plant_ways_out, sums
from tests.fs.remote_hosts import (
    ODD_NAMES,
    SHELLS,
    Elsewhere,
    busybox_tools,
    chosen_tools,
    content_of,
    litter,
    names_in,
    shell_called_sh,
)
from tests.fs.trees import archive_of, packed, unpack

OPERATION_SECONDS = 20


@pytest.fixture(params=SHELLS)
def place(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> Iterator[RemoteFileSystem]:
    """``folder`` with ``allowed`` and links out of it, in each shell."""
    plant_ways_out(folder)
    transport = Elsewhere(shell_called_sh(tmp_path, request.param), os.environ["PATH"], tmp_path)
    yield RemoteFileSystem(transport, bytes(folder), gate=Patterns(bytes(folder / "allowed/**")))
    transport.close()


def test_files_come_and_go_as_for_the_owner(place: RemoteFileSystem, write: Write, folder: Path) -> None:
    for name in ODD_NAMES:
        path = b"allowed/" + name
        write(place, path, name, 0o640)
        assert content_of(place, path) == name
        files.move(place, path, b"to-allowed/sub/moved", overwrite=True, timeout=OPERATION_SECONDS)
        assert (folder / "allowed/sub/moved").read_bytes() == name
    write(place, b"allowed/sub/moved", b"over it")
    assert content_of(place, b"allowed/sub/moved") == b"over it"
    assert files.stat_file(place, b"allowed/sub/moved", follow=False).mode == 0o640
    files.remove(place, b"allowed/sub/moved", recursive=False, timeout=OPERATION_SECONDS)
    assert receive(place, b"allowed/in", iter([b"x" * 300_000]), None, FileAttributes())[0] == 300_000
    assert (folder / "allowed/sub/inner").read_bytes() == b"x" * 300_000, "the link was not followed"
    assert litter(folder / "allowed") == litter(folder / "allowed/sub") == []


def test_only_what_was_read_is_replaced(place: RemoteFileSystem, write: Write, folder: Path) -> None:
    write(place, b"allowed/new", b"old", None, NOTHING)
    with pytest.raises(errors.FileExists):
        write(place, b"allowed/new", b"other", None, NOTHING)
    write(place, b"allowed/new", b"new", None, sha256(b"old").hexdigest())
    with pytest.raises(errors.FileChanged):
        write(place, b"allowed/new", b"other", None, sha256(b"old").hexdigest())
    assert (folder / "allowed/new").read_bytes() == b"new"
    assert litter(folder / "allowed") == []


def test_directories_are_made_with_their_modes_and_removed(place: RemoteFileSystem, folder: Path) -> None:
    allowed = folder / "allowed"
    files.make_directory(place, b"allowed/new", 0o2751, parents=False, timeout=OPERATION_SECONDS)
    assert (allowed / "new").stat().st_mode & 0o7777 == 0o2751
    files.make_directory(place, b"allowed/a//b/./c/", 0o700, parents=True, timeout=OPERATION_SECONDS)
    files.make_directory(place, b"allowed/a/b/c", 0o755, parents=True, timeout=OPERATION_SECONDS)
    assert (allowed / "a/b/c").stat().st_mode & 0o7777 == 0o700
    with pytest.raises(errors.FileExists):
        files.make_directory(place, b"allowed/new", None, parents=False, timeout=OPERATION_SECONDS)
    with pytest.raises(errors.NoSuchDirectory):
        files.make_directory(place, b"allowed/nowhere/new", None, parents=False, timeout=OPERATION_SECONDS)
    with pytest.raises(errors.DirectoryNotEmpty):
        files.remove(place, b"allowed/a", recursive=False, timeout=OPERATION_SECONDS)
    files.move(place, b"allowed/a/b", b"allowed/sub/b", overwrite=False, timeout=OPERATION_SECONDS)
    files.remove(place, b"allowed/sub", recursive=True, timeout=OPERATION_SECONDS)
    files.remove(place, b"allowed/a", recursive=False, timeout=OPERATION_SECONDS)
    assert not (allowed / "sub").exists()
    assert not (allowed / "a").exists()


def test_links_themselves_are_removed_and_moved_and_nothing_that_they_lead_to(
    place: RemoteFileSystem, folder: Path
) -> None:
    for name in (b"to-file", b"to-dir", b"to-root", b"to-missing"):
        files.move(place, b"allowed/" + name, b"allowed/moved", overwrite=False, timeout=OPERATION_SECONDS)
        files.remove(place, b"allowed/moved/", recursive=True, timeout=OPERATION_SECONDS)
    for name in (b"to-above", b"chain"):
        files.move(place, b"allowed/file", b"allowed/" + name, overwrite=True, timeout=OPERATION_SECONDS)
        files.move(place, b"allowed/" + name, b"allowed/file", overwrite=True, timeout=OPERATION_SECONDS)
    assert (folder / "secret/file").read_bytes() == SECRET
    assert names_in(folder) == ["allowed", "allowed-not", "secret", "to-allowed", "to-allowed-file"]


def test_a_listing_has_what_is_allowed_alone(place: RemoteFileSystem, folder: Path) -> None:
    allowed = bytes(folder / "allowed")
    place = replace(place, gate=Patterns(allowed, allowed + b"/sub/**", allowed + b"/f*", denied=(b"**/inner",)))
    (folder / "allowed/sub/deep").mkdir()
    assert [entry.name for entry in files.list_directory(place, b"allowed")] == [b"file", b"sub"]
    listed = [entry.name for entry in files.list_directory(place, b"to-allowed/", recursive=True)]
    assert listed == [b"file", b"sub", b"sub/deep", b"sub/up"]


FOUND = [
    ("allowed/f*", ["allowed/file"]),
    ("{folder}/allowed/f*", ["{folder}/allowed/file"]),
    ("*/file", ["allowed/file"]),
    ("*/*/inner", ["allowed/sub/inner"]),
    ("to-allowed/s*/inner", ["to-allowed/sub/inner"]),
    ("to-a*", []),
    ("to-*/file", []),
    ("allowed/to-d*/*", []),
    ("allowed/to-dir/*", []),
    ("allowed/file", ["allowed/file"]),
    ("allowed/missing", []),
    ("secret/file", []),
    ("s*/*", []),
    ("missing/*", []),
    ("secret/../allowed/*", []),
    ("missing/../allowed/*", []),
    ("/etc/pass*", []),
    ("/", []),
    ("allowed/.", []),
    ("allowed/[.][.]/secret/file", []),
    ("s*/\\../allowed/file", []),
    ("/proc/[1]/cwd", []),
    ("/proc/self/root/{folder}/s*/file", []),
]
"""Patterns, and the files that they find."""


def test_patterns_find_what_is_allowed_alone(place: RemoteFileSystem, folder: Path) -> None:
    for pattern, found in FOUND:
        names = [entry.name for entry in files.matching(place, os.fsencode(pattern.format(folder=folder)))]
        assert names == [os.fsencode(name.format(folder=folder)) for name in found], pattern


@pytest.mark.parametrize("pattern", [b"s*/../allowed/file", b"/proc/*/..", b"allowed/*/../../secret/file"])
def test_a_pattern_does_not_go_back_from_what_it_matches(place: RemoteFileSystem, pattern: bytes) -> None:
    with pytest.raises(errors.PolicyDenied):
        files.matching(place, pattern)


def test_archives_and_checksums_equal_the_owner_s(place: RemoteFileSystem, folder: Path) -> None:
    os.link(folder / "allowed/file", folder / "allowed/sub/second")
    owner = replace(place, gate=None)
    assert _members(packed(place, b"to-allowed")) == _members(packed(owner, b"allowed"))
    assert sums(place, b"to-allowed")
    assert set(sums(place, b"to-allowed")) == set(sums(owner, b"allowed"))
    (folder / "allowed/sub/second").unlink()
    some = (b"sub", b"file", b"to-file")
    assert _members(packed(place, b"allowed", *some)) == _members(packed(owner, b"allowed", *some))
    assert set(sums(place, b"allowed", *some)) == set(sums(owner, b"allowed", *some))
    assert _members(packed(place, b"allowed/sub/inner")) == _members(packed(owner, b"allowed/sub/inner"))
    assert sums(place, b"allowed/in") == sums(owner, b"allowed/in")


def _members(archive: bytes) -> dict[str, tuple[bytes, str, bytes]]:
    with tarfile.open(fileobj=BytesIO(archive)) as opened:
        return {
            member.name: (member.type, member.linkname, _content(opened, member))
            for member in opened
            if member.name != "."
        }


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    found = archive.extractfile(member) if member.isreg() else None
    return found.read() if found else b""


def test_a_member_that_is_not_allowed_is_told_in_the_archive_that_has_the_others(place: RemoteFileSystem) -> None:
    archive = packed(place, b".", b"allowed/sub", b"secret", b"allowed/to-dir/sub", b"missing", b"allowed/file")
    assert set(_members(archive)) == {"./allowed/sub", "./allowed/sub/inner", "./allowed/sub/up", "./allowed/file"}
    assert SECRET not in archive
    assert archive.count(REFUSAL.encode()) == 3


def test_archives_are_unpacked_where_everything_below_may_be_written(place: RemoteFileSystem, folder: Path) -> None:
    content = archive_of(("d", {"type": tarfile.DIRTYPE, "mode": 0o755}), ("d/f", {"content": b"x"}), ("g", {}))
    assert unpack(place, b"allowed/new", content) == []
    assert unpack(place, b"to-allowed/new", content) == []
    assert (folder / "allowed/new/d/f").read_bytes() == b"x"
    (folder / "allowed/new/d").rename(folder / "allowed/new/e")
    (folder / "allowed/new/d").symlink_to(folder / "secret")
    assert [failed.path for failed in unpack(place, b"allowed/new", content)] == [b"d"]
    assert names_in(folder / "secret") == ["file", "sub"]
    assert litter(folder / "allowed/new") == []


def test_a_whole_tree_is_not_touched_where_a_part_of_it_is_denied(place: RemoteFileSystem, folder: Path) -> None:
    allowed = bytes(folder / "allowed")
    gate = Patterns(allowed + b"/**", denied=(allowed + b"/sub/inner",))
    place = replace(place, gate=gate)
    for work in (
        lambda: files.remove(place, b"allowed/sub", recursive=True, timeout=OPERATION_SECONDS),
        lambda: files.move(place, b"allowed/sub", b"allowed/renamed", overwrite=False, timeout=OPERATION_SECONDS),
        lambda: archived(place, b"allowed"),
        lambda: sums(place, b"allowed/sub"),
        lambda: unpack(place, b"allowed/sub", archive_of(("inner", {}))),
    ):
        with pytest.raises(errors.PolicyDenied):
            work()
    assert (folder / "allowed/sub/inner").read_bytes() == b"content"


def test_a_write_only_file_is_not_moved_to_a_readable_place(place: RemoteFileSystem, folder: Path) -> None:
    class WriteOnly(Patterns):
        def check(self, action: str, path: bytes) -> None:
            if action == "fs.read" and b"secret" in path:
                raise errors.PolicyDenied(REFUSAL)

    place = replace(place, gate=WriteOnly())
    for name in (b"secret/file", b"secret"):
        with pytest.raises(errors.PolicyDenied):
            files.move(place, name, b"allowed/moved", overwrite=False, timeout=OPERATION_SECONDS)
    files.remove(place, b"secret/file", recursive=False, timeout=OPERATION_SECONDS)


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_only_regular_files_are_opened(place: RemoteFileSystem, folder: Path, kind: str) -> None:
    path = folder / "allowed/special"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/full")
        place = replace(place, gate=Patterns(b"/**"))
    for work in (
        lambda: content_of(place, b"allowed/special"),
        lambda: receive(place, b"allowed/special", iter([b"x"]), 1, FileAttributes()),
        lambda: list(files.list_directory(place, b"allowed/special")),
    ):
        with pytest.raises(errors.WrongFileType):
            work()
    assert sums(place, b"allowed/special") == []


def test_a_program_is_not_put_there(place: RemoteFileSystem) -> None:
    with pytest.raises(errors.PolicyDenied):
        files.make_temporary(place)


def test_a_refusal_costs_no_helper_and_the_owner_is_not_asked(place: RemoteFileSystem) -> None:
    assert content_of(place, b"allowed/file") == b"content"
    helper = place.helpers.take()
    assert helper
    place.helpers.leave(helper)
    for _ in range(3):
        with pytest.raises(errors.PolicyDenied):
            content_of(place, b"secret/file")
    assert isinstance(place.gate, Patterns)
    asked = len(place.gate.asked)
    assert content_of(replace(place, gate=None), b"secret/file") == SECRET
    assert len(place.gate.asked) == asked
    again = place.helpers.take()
    assert again is helper
    place.helpers.leave(again)


def test_tools_that_follow_what_they_should_not_are_not_used(tmp_path: Path, folder: Path, write: Write) -> None:
    plant_ways_out(folder)
    transport = Elsewhere(Path("/bin/sh"), busybox_tools(tmp_path), tmp_path)
    place = RemoteFileSystem(transport, bytes(folder), gate=Patterns(bytes(folder / "allowed/**")))
    write(place, b"allowed/file", b"new")
    assert content_of(place, b"allowed/file") == b"new"
    files.move(place, b"allowed/file", b"allowed/sub/file", overwrite=False, timeout=OPERATION_SECONDS)
    assert [entry.name for entry in files.list_directory(place, b"allowed/sub")] == [b"file", b"inner", b"up"]
    for work in (
        lambda: files.remove(place, b"allowed/sub", recursive=True, timeout=OPERATION_SECONDS),
        lambda: files.list_directory(place, b"allowed", recursive=True),
    ):
        with pytest.raises(errors.FileOperationFailed, match="path rules"):
            work()
    transport.close()


def test_a_remote_host_without_stat_gives_nothing_away(tmp_path: Path, folder: Path, write: Write) -> None:
    plant_ways_out(folder)
    tools = chosen_tools(tmp_path, ["cat", "chmod", "head", "ls", "mv", "readlink", "rm", "sha256sum", "wc"])
    transport = Elsewhere(Path("/bin/sh"), tools, tmp_path)
    place = RemoteFileSystem(transport, bytes(folder), gate=Patterns(bytes(folder / "allowed/**")))
    write(place, b"allowed/new", b"new")
    for work in (lambda: content_of(place, b"allowed/file"), lambda: write(place, b"allowed/file", b"x")):
        with pytest.raises(errors.FileOperationFailed, match="path rules"):
            work()
    with pytest.raises(errors.PolicyDenied):
        content_of(place, b"allowed/to-file")
    assert (folder / "allowed/file").read_bytes() == b"content"
    transport.close()


# What BSD's stat knows of GNU's: a format after -f, of names or of the standard input, and links not followed.
_BSD_STAT = """#!/bin/sh
[ "$1" = -f ] || exit 1
format=$(printf %s "$2" | sed 's/%Mp%Lp/%a/; s/%z/%s/'); shift 2
[ "$1" != -- ] || shift
[ $# -gt 0 ] || set -- -
exec @stat@ -c "$format" -- "$@"
"""


@pytest.mark.needs("machine")
def test_without_proc_and_with_bsd_s_stat_files_are_read_made_and_removed(tmp_path: Path, folder: Path) -> None:
    plant_ways_out(folder)
    names = ["cat", "ls", "mkdir", "chmod", "mv", "readlink", "rm", "rmdir", "sed", "head", "wc", "sha256sum"]
    tools = Path(chosen_tools(tmp_path, names))
    (tools / "stat").write_text(_BSD_STAT.replace("@stat@", shutil.which("stat") or ""))
    (tools / "stat").chmod(0o755)
    shell = tmp_path / "without-proc"
    shell.write_text(
        '#!/bin/sh\nexec /usr/bin/unshare -m /bin/sh -c \'/bin/mount -t tmpfs x /proc; exec /bin/sh "$@"\' x "$@"\n'
    )
    shell.chmod(0o755)
    transport = Elsewhere(shell, str(tools), tmp_path)
    place = RemoteFileSystem(transport, bytes(folder), gate=Patterns(bytes(folder / "allowed/**")))
    assert content_of(place, b"to-allowed/in") == b"content"
    files.make_directory(place, b"allowed/new", 0o750, parents=False, timeout=OPERATION_SECONDS)
    files.move(place, b"allowed/new", b"allowed/newer", overwrite=False, timeout=OPERATION_SECONDS)
    files.remove(place, b"allowed/newer", recursive=False, timeout=OPERATION_SECONDS)
    for refused in (
        lambda: files.move(place, b"allowed/file", b"allowed/sub/file", overwrite=False, timeout=OPERATION_SECONDS),
        lambda: receive(place, b"allowed/new", iter([b"x"]), 1, FileAttributes()),
    ):
        with pytest.raises(errors.FileOperationFailed, match="path rules"):
            refused()
    with pytest.raises(errors.PolicyDenied):
        content_of(place, b"allowed/to-file")
    assert litter(folder / "allowed") == []
    transport.close()
