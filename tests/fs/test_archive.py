"""Directories as archives, with every kind of tar: what is restored, and what is never written."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from connmgr import errors
from connmgr.fs import archives, remote
from connmgr.fs.archives import (
    FAILED,
    MAX_LINKS,
    TAR_BLOCK_BYTES,
    Archive,
    ExtractionFilter,
    Member,
    Tally,
    TarReader,
    extract,
)
from connmgr.fs.files import list_directory, matching
from connmgr.fs.remote import RemoteFileSystem
from tests.components import program
from tests.fs.remote_hosts import (
    NECESSARY,
    ODD_NAMES,
    SHELLS,
    Elsewhere,
    busybox_tools,
    chosen_tools,
    litter,
    names_in,
    shell_called_sh,
)
from tests.fs.test_hostile_answers import place as scripted
from tests.fs.trees import archive_of, facts, packed, plant, unpack
from tests.hostile import quickly

pytestmark = pytest.mark.needs("tar")

TARS = ["tar", pytest.param("bsdtar", marks=pytest.mark.needs("bsdtar"))]
TARS += [pytest.param("busybox", marks=pytest.mark.needs("busybox"))]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    plant(directory)
    return directory


@pytest.mark.parametrize("kind", TARS)
def test_a_tree_comes_back_as_it_was(kind: str, tree: Path, tmp_path: Path) -> None:
    if kind == "busybox":
        tools = busybox_tools(tmp_path)
        (Path(tools) / "tar").symlink_to(program("busybox") or "")
    else:
        tools = chosen_tools(tmp_path, [*NECESSARY, "cp", "dd", "find", "stat", "uname"])
        (Path(tools) / "tar").symlink_to(program(kind) or "")
    place = RemoteFileSystem(Elsewhere(Path("/bin/sh"), tools, tmp_path), bytes(tmp_path))
    assert unpack(place, b"copy", packed(place, bytes(tree))) == []
    assert facts(tmp_path / "copy") == facts(tree)
    assert litter(tmp_path / "copy") == []
    names = [name for name in sorted(facts(tree)) if b"/" not in name]
    with tarfile.open(fileobj=io.BytesIO(packed(place, bytes(tree), *names))) as found:
        assert {os.fsencode(member.name)[2:] for member in found} == set(facts(tree)), "chosen by their names"
    # Extract again over the existing files.
    assert unpack(place, b"copy", packed(place, bytes(tree))) == []
    assert facts(tmp_path / "copy") == facts(tree)
    place.transport.close()


def test_a_machine_whose_tools_read_ahead_is_sent_a_chunk_at_a_time(tree: Path, tmp_path: Path) -> None:
    (tree / "large").write_bytes(os.urandom(5 << 20))
    tools = chosen_tools(tmp_path, [*NECESSARY, "tar", "find", "stat", "uname"])
    place = RemoteFileSystem(Elsewhere(Path("/bin/sh"), tools, tmp_path), bytes(tmp_path))
    assert unpack(place, b"copy", packed(place, bytes(tree))) == []
    assert facts(tmp_path / "copy") == facts(tree)
    place.transport.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_in_every_shell(shell: str, tree: Path, tmp_path: Path) -> None:
    place = RemoteFileSystem(Elsewhere(shell_called_sh(tmp_path, shell), os.environ["PATH"], tmp_path), bytes(tmp_path))
    for _ in range(2):
        assert unpack(place, b"copy", packed(place, bytes(tree))) == []
        assert facts(tmp_path / "copy") == facts(tree)
    listed = list_directory(place, b"tree", recursive=True)
    assert {entry.name for entry in listed} == set(facts(tree))
    assert {entry.name for entry in matching(place, b"tree/*")} == {
        b"tree/" + os.fsencode(name) for name in names_in(tree)
    }
    place.transport.close()


def test_every_python_reads_what_is_sent(here: RemoteFileSystem, folder: Path) -> None:
    plant(folder)
    with tarfile.open(fileobj=io.BytesIO(packed(here, b"."))) as found:
        names = {os.fsencode(member.name).removeprefix(b"./") for member in found if member.name != "."}
    assert names == set(facts(folder))


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_layout_is_read(here: RemoteFileSystem, folder: Path, layout: int) -> None:
    long = "/".join(["d" * 60] * (3 if layout == tarfile.USTAR_FORMAT else 10))
    content = os.urandom(1000)
    pieces = archive_of((long, {"content": content, "mtime": 1_000_000_000.75}), layout=layout)
    assert unpack(here, b".", pieces) == []
    assert (folder / long).read_bytes() == content
    assert int((folder / long).stat().st_mtime) == 1_000_000_000


def test_chosen_members_alone_are_sent_however_many_there_are(
    here: RemoteFileSystem, folder: Path, tmp_path: Path
) -> None:
    for number in range(300):
        (folder / f"{number:03} {'n' * 240}").write_text(str(number))
    chosen = [os.fsencode(name) for name in names_in(folder)[::2]]
    assert sum(map(len, chosen)) < remote.CALL_BYTES < sum(map(len, chosen)) * 2
    more = [os.fsencode(name) for name in names_in(folder)[1:270]]
    for members in (chosen, more):
        content = packed(here, b".", *members)
        with tarfile.open(fileobj=io.BytesIO(content)) as found:
            assert [os.fsencode(name) for name in found.getnames()] == [b"./" + name for name in members]


def test_a_single_file_is_an_archive_too(here: RemoteFileSystem, folder: Path) -> None:
    (folder / "-f").write_text("content")
    with tarfile.open(fileobj=io.BytesIO(packed(here, b"-f"))) as found:
        assert found.getnames() == ["./-f"]


def test_members_that_cannot_be_read_are_reported(here: RemoteFileSystem, folder: Path) -> None:
    (folder / "there").write_text("x")
    with tarfile.open(fileobj=io.BytesIO(packed(here, b".", b"gone", b"there"))) as found:
        assert "./there" in found.getnames()
        assert "gone" in found.getmembers()[-1].pax_headers[FAILED]


def test_devices_and_pipes_are_left_out(here: RemoteFileSystem, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "file").write_text("x")
    with tarfile.open(fileobj=io.BytesIO(packed(here, b"."))) as found:
        assert sorted(found.getnames()) == [".", "./file"]


def test_modes(here: RemoteFileSystem, folder: Path) -> None:
    content = archive_of(
        ("program", {"mode": 0o6777, "content": b"x"}),
        ("directory", {"type": tarfile.DIRTYPE, "mode": 0o3555}),
        ("directory/file", {"mode": 0o666, "content": b"x"}),
    )
    mask = os.umask(0o077)
    os.umask(mask)
    for exact, lost in ((False, mask), (True, 0)):
        assert unpack(here, b"modes", content, exact=exact) == []
        paths = ("program", "directory", "directory/file")
        modes = [stat.S_IMODE((folder / "modes" / path).stat().st_mode) for path in paths]
        kept = stat.S_IMODE((folder / "modes" / "directory").stat().st_mode)
        assert modes == [0o777 & ~lost, 0o755 & ~mask if not exact else kept, 0o666 & ~lost]
        assert kept & 0o700 == 0o700


OUTSIDE = "outside"
LINK = {"type": tarfile.SYMTYPE, "linkname": "../outside"}
UNSAFE: dict[str, list[tuple[str, dict[str, object]]]] = {
    "absolute": [("/tmp/x", {})],
    "above": [("a/../../x", {})],
    "just above": [("..", {"type": tarfile.DIRTYPE})],
    "through a link": [("link", LINK), ("link/x", {"content": b"x"})],
    "through a link by another name": [("./a//link", LINK), ("a/./link/x", {"content": b"x"})],
    "over a link": [("link", {**LINK, "linkname": "../outside/x"}), ("link", {"content": b"x"})],
    "hard link above": [("x", {"type": tarfile.LNKTYPE, "linkname": "../outside/old"})],
    "absolute hard link": [("x", {"type": tarfile.LNKTYPE, "linkname": "/etc/hostname"})],
    "hard link through a link": [("link", LINK), ("x", {"type": tarfile.LNKTYPE, "linkname": "link/old"})],
    "hard link to a link": [("link", LINK), ("x", {"type": tarfile.LNKTYPE, "linkname": "link"})],
    "character device": [("x", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})],
    "block device": [("x", {"type": tarfile.BLKTYPE})],
    "pipe": [("x", {"type": tarfile.FIFOTYPE})],
    "sparse": [("x", {"pax_headers": {"GNU.sparse.major": "1"}})],
    "link to nowhere": [("x", {"type": tarfile.SYMTYPE, "linkname": ""})],
}


@pytest.mark.parametrize("case", UNSAFE)
def test_an_archive_that_leads_out_is_refused_whole(here: RemoteFileSystem, folder: Path, case: str) -> None:
    (folder / OUTSIDE).mkdir()
    (folder / OUTSIDE / "old").write_text("old")
    content = archive_of(("first", {"content": b"first"}), *UNSAFE[case])
    with pytest.raises(errors.ArchiveRefused):
        unpack(here, b"into", content)
    assert names_in(folder / "into") == [], "some of it was written"
    assert [(folder / OUTSIDE / name).read_text() for name in names_in(folder / OUTSIDE)] == ["old"]


MALFORMED = {
    "nothing": b"",
    "noise": os.urandom(1 << 16),
    "no end": archive_of(("x", {"content": b"x"}))[:1024],
    "cut in a content": archive_of(("x", {"content": bytes(5000)}))[:2000],
    "cut in a header": archive_of(("x", {}))[:100],
    "more after the end": archive_of(("x", {})) + b"more",
    "headers without end": archives._block(b"x", b"L", 1) * 1000,
    "a name without end": archives._block(b"x", b"L", 1 << 40) + bytes(1 << 20),
    "a negative size": b"".join([(head := archives._block(b"x", b"0", 0))[:124], b"-7777777777\0", head[136:]]),
    "an unknown kind": archives._block(b"x", b"Q", 0),
    "members in the content of a directory": b"".join(
        [
            archives._block(b"x/", b"0", 512),
            archives._block(b"hidden", b"0", 0, Member(b"hidden", archives.FILE, mode=0o4755)),
            archives.END,
        ]
    ),
    "members in the content of a directory by its pax header": b"".join(
        [
            archives._block(b"x", b"x", 23),
            b"11 path=x/\n12 size=512\n".ljust(512, b"\0"),
            archives._block(b"x", b"0", 0),
            bytes(512),
            archives.END,
        ]
    ),
    "members in the content of a directory with a long name": b"".join(
        [
            archives._block(b"x", b"L", 3),
            b"x/".ljust(512, b"\0"),
            archives._block(b"x", b"7", 512),
            bytes(512),
            archives.END,
        ]
    ),
    "a pax header that lies": archives._block(b"x", b"x", 9) + b"99 path=\n" + bytes(503),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_archive_is_refused_whole(here: RemoteFileSystem, folder: Path, case: str) -> None:
    with pytest.raises(errors.ArchiveRefused):
        unpack(here, b"into", MALFORMED[case])
    assert names_in(folder / "into") == []


def test_extraction_follows_no_existing_link(here: RemoteFileSystem, folder: Path) -> None:
    (folder / OUTSIDE).mkdir()
    (folder / "into" / "sub").mkdir(parents=True)
    for place in ("link", "sub/link"):
        (folder / "into" / place).symlink_to(folder / OUTSIDE)
    (folder / "into" / "file").symlink_to(folder / OUTSIDE / "x")
    content = archive_of(
        ("link/x", {"content": b"x"}), ("sub/link/x", {"content": b"x"}), ("sub/y", {}), ("file", {"content": b"file"})
    )
    failed = unpack(here, b"into", content)
    assert sorted(one.path for one in failed) == [b"link", b"sub/link"]
    assert names_in(folder / OUTSIDE) == []
    assert (folder / "into" / "sub" / "y").exists()
    assert not (folder / "into" / "file").is_symlink()
    assert (folder / "into" / "file").read_text() == "file"


def test_files_in_the_way_stay_and_are_reported(here: RemoteFileSystem, folder: Path) -> None:
    (folder / "into" / "a" / "inner").mkdir(parents=True)
    (folder / "into" / "b").write_text("old")
    content = archive_of(("a", {"content": b"new"}), ("b/x", {"content": b"new"}), ("c", {"content": b"new"}))
    failed = unpack(here, b"into", content)
    assert {one.path: bool(one.message) for one in failed} == {b"a": True, b"b": True}
    assert (folder / "into" / "b").read_text() == "old"
    assert (folder / "into" / "c").read_text() == "new"
    assert litter(folder / "into") == []


def test_a_machine_without_tar_says_so(folder: Path, tmp_path: Path) -> None:
    tools = chosen_tools(tmp_path, [*NECESSARY, "find", "stat"])
    place = RemoteFileSystem(Elsewhere(Path("/bin/sh"), tools, tmp_path), bytes(folder))
    with pytest.raises(errors.TarMissing):
        packed(place, b".")
    with pytest.raises(errors.TarMissing):
        unpack(place, b"into", archive_of(("x", {})))
    assert names_in(folder) == []
    place.transport.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_failure_of_tar_is_told(folder: Path, tmp_path: Path, shell: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    complaint = "tar: x: Cannot write: No space left on device\ntar: Exiting"
    (tools / "tar").write_text(f"#!/bin/sh\necho '{complaint}' >&2; exit 2\n")
    (tools / "tar").chmod(0o755)
    transport = Elsewhere(shell_called_sh(tmp_path, shell), f"{tools}:{os.environ['PATH']}", tmp_path)
    with pytest.raises(errors.NoSpace):
        unpack(RemoteFileSystem(transport, bytes(folder)), b"into", archive_of(("x", {})))
    transport.close()


def test_a_failure_before_a_pattern_is_expanded_is_told(folder: Path, tmp_path: Path) -> None:
    tools = chosen_tools(tmp_path, NECESSARY)
    place = RemoteFileSystem(Elsewhere(Path("/bin/sh"), tools, tmp_path), bytes(folder))
    with pytest.raises(errors.FileOperationFailed, match="stat is not installed there"):
        matching(place, b"*")
    place.transport.close()


@pytest.mark.parametrize("options", ["--exclude=*", "--dereference"])
def test_the_options_of_the_user_s_tar_are_not_ours(
    here: RemoteFileSystem, folder: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setenv("TAR_OPTIONS", options)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "file").write_bytes(b"content")
    assert unpack(here, b"into", archive_of(("new", {}))) == []
    assert (folder / "into/new").exists()
    with tarfile.open(fileobj=io.BytesIO(packed(here, b"."))) as archive:
        assert {"./link", "./file"} <= {member.name for member in archive}
        assert archive.getmember("./link").issym()


@pytest.mark.needs("bash")
@pytest.mark.parametrize(
    "options", ["SHELLOPTS=noglob", "SHELLOPTS=errexit:nounset", "BASHOPTS=failglob", "BASHOPTS=nullglob"]
)
def test_options_that_bash_takes_from_its_environment_change_nothing(
    folder: Path, tmp_path: Path, options: str
) -> None:
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\nexec env {options} "{shell_called_sh(tmp_path, "bash")}" "$@"\n')
    shell.chmod(0o755)
    place = RemoteFileSystem(Elsewhere(shell, os.environ["PATH"], tmp_path), bytes(folder))
    assert unpack(place, b"into", archive_of(("below/new", {}))) == []
    assert (folder / "into/below/new").exists()
    assert unpack(place, b"into", archive_of(("below/other", {}))) == []
    assert (folder / "into/below/other").exists()
    with pytest.raises(errors.NoSuchFile):
        packed(place, b"none")
    place.transport.close()


HOSTILE = {
    "noise": "head -c 100000 /dev/urandom",
    "nothing": "true",
    "a header alone": "head -c 512 /dev/zero | tr '\\0' x",
    "zeros without end": "cat /dev/zero",
    "letters without end": "yes",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_remote_host_that_sends_no_archive(folder: Path, tmp_path: Path, case: str) -> None:
    tools = chosen_tools(tmp_path, [*NECESSARY, "find", "stat", "tr", "yes"])
    false = Path(tools) / "tar"
    false.write_text(f"#!/bin/sh\ncase $1 in --version) exit;; esac\n{HOSTILE[case]}\n")
    false.chmod(0o755)
    place = RemoteFileSystem(Elsewhere(Path("/bin/sh"), tools, tmp_path), bytes(folder))
    with pytest.raises(errors.TransferFailed):
        packed(place, b".")
    place.transport.close()


def test_a_path_that_leads_out_is_not_asked_for(here: RemoteFileSystem) -> None:
    for name in (b"../x", b"/etc/passwd", b"a/../../b"):
        with pytest.raises(errors.ArchiveRefused):
            Archive(here, b".", [name])


def test_a_killed_writer_s_directory_is_cleared_by_the_next(here: RemoteFileSystem, folder: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield archive_of(("x", {"content": bytes(4 << 20)}))[: 3 << 20]
        (shell,) = [name for name in litter(folder) if name.startswith(".connmgr-")]
        os.kill(int(shell.split("-")[1]), 9)
        yield from ()

    with pytest.raises(errors.ConnmgrError):
        extract(here, b".", broken(), exact=True, tally=Tally())
    assert unpack(here, b".", archive_of(("y", {"content": b"y"}))) == []
    assert names_in(folder) == ["y"]


def test_a_pattern_is_not_run_as_a_program(here: RemoteFileSystem, folder: Path) -> None:
    for name in ODD_NAMES:
        (folder / os.fsdecode(name)).write_text("x")
    found = [entry.name for entry in matching(here, b"*")]
    assert found == sorted(name for name in ODD_NAMES)
    for pattern in (b"$(touch made)*", b"`touch made`", b"*; touch made", b"$HOME/*", b"nothing*", b"~x/*"):
        assert all(entry.name in ODD_NAMES for entry in matching(here, pattern)), pattern
    assert not (folder / "made").exists()
    assert [entry.name for entry in matching(here, b"plain")] == [b"plain"]
    assert [entry.name for entry in matching(here, bytes(folder) + b"/pl?[a-j]n")] == [bytes(folder) + b"/plain"]


HEAD = archives._block(b"x", b"x", 60_000)
TINY = [HEAD + b"5 a=\n" * 12_000 + bytes(-60_000 % 512), archives._block(b"x", b"0", 0)]
EXPENSIVE = {
    "pax headers of many records": b"".join([*TINY * 60, archives.END]),
    "headers alone": archives._block(b"x", b"0", 0) * 20_000 + archives.END,
    "deep paths beside a link": b"".join(
        [
            archives.header(Member(b"a/" * 4000 + b"link", archives.LINK, target=b"x")),
            *(archives.header(Member(b"a/" * 4000 + b"%d" % number, archives.FILE)) for number in range(700)),
            archives.END,
        ]
    ),
}


@pytest.mark.parametrize("case", EXPENSIVE)
def test_reading_an_archive_takes_little_time_whatever_is_in_it(case: str) -> None:
    content = EXPENSIVE[case]
    with quickly():
        gate = ExtractionFilter(0, Tally())
        passed = [gate(member) for member in TarReader([content])]
    assert len(passed) >= 60


@pytest.mark.parametrize("lead", [b"", archives._block(b"x", b"x", 60_000)], ids=["after the end", "in a header"])
def test_pieces_of_a_byte_are_read_in_linear_time(lead: bytes) -> None:
    content = lead + b"5 a=\n" * 12_000 if lead else archives.END + b"x" * (1 << 20)
    reader = TarReader(content[at : at + 1] for at in range(len(content)))
    with quickly(), suppress(errors.ArchiveRefused):
        assert list(reader) == []
        reader.rest()


def test_links_take_bounded_memory() -> None:
    gate = ExtractionFilter(0, Tally())
    deep = (Member(b"%d/" % number + b"a/" * 4000 + b"link", archives.LINK, target=b"x") for number in range(MAX_LINKS))
    with pytest.raises(errors.ArchiveRefused, match="or fewer with long paths"):
        deque(map(gate, deep), maxlen=0)
    gate = ExtractionFilter(0, Tally())
    for number in range(MAX_LINKS):
        gate(Member(b"a/b/c/d/e/f/g/%d/link%d" % (number // 3, number), archives.LINK, target=b"x"))


def test_long_complaints_of_tar_are_truncated_and_the_archive_can_be_written_again() -> None:
    complaints = b"\xff: Permission denied\n" * 10_000
    remote_host = scripted(b"MARK ok\n" + archives.END + complaints + b"MARK over 0\n", remote.ARCHIVE)
    content = packed(remote_host, b".")
    assert [member.name for member in TarReader([content])] == [b"./"]
    with tarfile.open(fileobj=io.BytesIO(content)) as found:
        assert 30_000 < len(found.getmembers()[-1].pax_headers[FAILED].encode()) <= 32 << 10


NUMBERS = [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"\x80" + bytes(10) + b"\7", b"-1\0", b"7" * 11 + b"\0", b"9" * 12]


def damaged(content: bytes, random: Random) -> bytes:
    """Return an archive with missing, repeated or changed blocks, most with a corrected checksum."""
    found = bytearray(content)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(found) // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
        block = found[at : at + TAR_BLOCK_BYTES]
        field = random.choice([100, 108, 116, 124, 136])
        number = random.choice(NUMBERS)[: 8 if field < 124 else 12]
        kind = random.randrange(5)
        if kind == 0:
            block[field : field + len(number)] = number
        elif kind == 1:
            block[156] = random.choice(b"01234567xgLKSVDA\0")
        elif kind == 2:
            block[random.randrange(TAR_BLOCK_BYTES)] = random.randrange(256)
        elif kind == 3:
            block = bytearray()
        if len(block) == TAR_BLOCK_BYTES and random.random() < 0.9:
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
        found[at : at + TAR_BLOCK_BYTES] = block + (block if kind == 4 else b"")
        found += bytes(-len(found) % TAR_BLOCK_BYTES or TAR_BLOCK_BYTES * (not found))
    return bytes(found)


def test_whatever_is_damaged_an_archive_is_refused_or_leads_nowhere_else() -> None:
    members: list[tuple[str, dict[str, object]]] = [
        ("a" * 90 + "/x", {"content": b"x" * 700, "mtime": 1.5}),
        ("d", {"type": tarfile.DIRTYPE}),
        ("d/l", {"type": tarfile.SYMTYPE, "linkname": "y" * 90}),
        ("h", {"type": tarfile.LNKTYPE, "linkname": "d/z"}),
        ("b" * 90 + "/" + "c" * 90, {"content": b"z"}),
    ]
    random, passed = Random(7), 0
    contents = [archive_of(*members, layout=layout) for layout in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    for _ in range(1500):
        with suppress(errors.ArchiveRefused):
            written = b"".join(
                archives._to_the_end(
                    TarReader([damaged(random.choice(contents), random)]), ExtractionFilter(0, Tally())
                )
            )
            passed += 1
            with tarfile.open(fileobj=io.BytesIO(written)) as found:
                for member in found:
                    leads = [member.name, *([member.linkname] if member.islnk() else [])]
                    assert all(path.startswith("./") and ".." not in path.split("/") for path in leads), leads
                    assert member.isfile() or member.isdir() or member.issym() or member.islnk()
                    assert member.mode & ~0o777 == 0
    assert passed > 100, "hardly any of them was read to its end"
