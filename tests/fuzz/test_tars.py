"""Archives of strangers: nothing is written outside of the directory, nothing that docs/FILES.md refuses appears, and
what is passed on, Python reads as the same members."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st

from connmgr import errors
from connmgr.fs import archives
from connmgr.fs.archives import TAR_BLOCK_BYTES, ExtractionFilter, Member, Tally, TarReader, _to_the_end, extract
from connmgr.fs.remote import RemoteFileSystem
from connmgr_local.transport import LocalTransport
from tests.fs.remote_hosts import litter
from tests.fs.trees import archive_of
from tests.fuzz.rounds import fuzz

pytestmark = pytest.mark.needs("tar")

PART = st.one_of(
    st.sampled_from(
        ["a", "b", "c", "..", ".", "", "link", "-x", "a b", "new\nline", "ü", "\udcff", "l" * 90, "m" * 110, "*"]
    ),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=5),
)
PATH = st.builds(
    lambda lead, parts, end: lead + "/".join(parts) + end,
    st.sampled_from(["", "", "", "", "./", "/", "../", "OUTSIDE/"]),
    st.lists(PART, min_size=1, max_size=4),
    st.sampled_from(["", "", "", "/"]),
)
KIND = st.sampled_from(
    [tarfile.REGTYPE] * 4
    + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.LNKTYPE, tarfile.AREGTYPE]
    + [
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        tarfile.GNUTYPE_SPARSE,
        b"D",
        b"V",
        b"g",
        b"Z",
    ]
)
ENTRY = st.fixed_dictionaries(
    {
        "type": KIND,
        "linkname": PATH,
        "content": st.binary(max_size=5) | st.sampled_from([b"x" * 512, b"y" * 70_000]),
        "mode": st.sampled_from([0o644, 0o755, 0o4755, 0o2755, 0o1777, 0o7777, 0]) | st.integers(0, 0o7777),
        "mtime": st.sampled_from([0, 1, 1.5, 1_600_000_000, 1 << 40, -5]),
        "uid": st.sampled_from([0, 65534, 1 << 24]),
        "devmajor": st.just(1),
        "devminor": st.just(3),
        "uname": st.sampled_from(["", "root", "u" * 40]),
        "pax_headers": st.dictionaries(
            st.sampled_from(
                ["path", "linkpath", "size", "mtime", "comment", "GNU.sparse.major", "GNU.sparse.name", "hdrcharset"]
            ),
            st.sampled_from(["", "a", "../a", "/etc/x", "0", "7", "99999999999", "-1", "1.5", "x=y", "a/../../b"]),
            max_size=2,
        ),
    }
)
LAYOUT = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
ENTRIES = st.lists(st.tuples(PATH, ENTRY), max_size=5)


class Damage(NamedTuple):
    """A change of a block of an archive, which ``corrected`` has a checksum that fits."""

    block: int
    at: int
    bytes: bytes
    corrected: bool


NUMBER = st.sampled_from(
    [b"7777777\0", b"\x80" + bytes(6) + b"\1", b"\xff" * 8, b"-1\0", b"0000010\0", b"       \0", b"\x80" * 8]
)
DAMAGES = st.lists(
    st.one_of(
        st.builds(Damage, st.integers(0, 30), st.integers(0, 511), st.binary(min_size=1, max_size=12), st.booleans()),
        st.builds(Damage, st.integers(0, 30), st.sampled_from([100, 108, 116, 124, 128, 136]), NUMBER, st.just(True)),
        st.builds(
            Damage,
            st.integers(0, 30),
            st.just(156),
            st.sampled_from(b"01234567xgLKSVDA\0").map(lambda letter: bytes((letter,))),
            st.just(True),
        ),
        st.builds(
            Damage,
            st.integers(0, 30),
            st.sampled_from([257, 345]),
            st.sampled_from([b"ustar\x0000", b"../x", b"/"]),
            st.just(True),
        ),
    ),
    max_size=3,
)
CUT = st.none() | st.integers(0, 40_000)


def made(entries: list[tuple[str, dict[str, object]]], layout: int, outside: str) -> bytes:
    """Return an archive; what the layout has no room for is left out of it."""
    found = b""
    for name, special in entries:
        linkname = str(special["linkname"]).replace("OUTSIDE", outside)
        with suppress(ValueError, UnicodeError):
            whole = archive_of((name.replace("OUTSIDE", outside), {**special, "linkname": linkname}), layout=layout)
            content = special["content"]
            assert isinstance(content, bytes)
            # Without its end and the padding of a record.
            end = whole.rstrip(b"\0")
            found += whole[: len(end) + -len(end) % TAR_BLOCK_BYTES]
    return found + archives.END


def damaged(content: bytes, damages: list[Damage], cut: int | None) -> bytes:
    found = bytearray(content)
    for one in damages:
        start = one.block * TAR_BLOCK_BYTES % len(found)
        block = found[start : start + TAR_BLOCK_BYTES]
        block[one.at : one.at + len(one.bytes)] = one.bytes
        del block[TAR_BLOCK_BYTES:]
        if one.corrected:
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
        found[start : start + TAR_BLOCK_BYTES] = block
    return bytes(found if cut is None else found[: cut % (len(found) + 1)])


def pieces_of(content: bytes, size: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


SIZE = st.sampled_from([1 << 20, 700, 512, 100])


@fuzz(examples=40, entries=ENTRIES, layout=LAYOUT, damages=DAMAGES, cut=CUT, size=SIZE)
def test_python_reads_the_same_members_from_a_passed_archive(
    entries: list[tuple[str, dict[str, object]]], layout: int, damages: list[Damage], cut: int | None, size: int
) -> None:
    content, gate = damaged(made(entries, layout, "/outside"), damages, cut), ExtractionFilter(0, Tally())
    passed: list[tuple[Member, bytes]] = []
    try:
        written = b"".join(_to_the_end(TarReader(pieces_of(content, size)), ExtractionFilter(0, Tally())))
    except errors.ArchiveRefused:
        return
    reader = TarReader([content])
    for member in reader:
        if (changed := gate(member)) is not None:
            passed.append((changed, b"".join(reader.content())))
    with tarfile.open(fileobj=io.BytesIO(written)) as archive:
        found = archive.getmembers()
        assert [os.fsencode(one.name) for one in found] == [one.name.rstrip(b"/") for one, _ in passed]
        for one, (member, body) in zip(found, passed, strict=True):
            assert (one.isfile(), one.isdir(), one.issym(), one.islnk()) == tuple(
                member.kind == kind for kind in (archives.FILE, archives.DIRECTORY, archives.LINK, archives.HARD_LINK)
            )
            assert (one.mode, one.mtime) == (member.mode, member.modified)
            assert one.mode & ~0o777 == 0
            assert os.fsencode(one.linkname) == (member.target if one.issym() or one.islnk() else b"")
            if one.isfile():
                extracted = archive.extractfile(one)
                assert extracted is not None
                assert extracted.read() == body
            names = [one.name, *([one.linkname] if one.islnk() else [])]
            assert all(name.startswith("./") and ".." not in name.split("/") for name in names)
        links = [one.name for one in found if one.issym()]
        for link in links:
            after = [one.name for one in found[next(at for at, one in enumerate(found) if one.name == link) + 1 :]]
            assert not any(name == link or name.startswith(f"{link}/") for name in after)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RemoteFileSystem, Path]]:
    """A directory of this machine with one to extract into, and something outside of that."""
    root = tmp_path_factory.mktemp("tars")
    transport = LocalTransport()
    yield RemoteFileSystem(transport, bytes(root)), root
    transport.close()


def facts(root: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return what each file below ``root`` is, besides ``into``."""
    found = {}
    for path in [root, *root.rglob("*")]:
        if path == root / "into" or root / "into" in path.parents:
            continue
        status = path.lstat()
        found[str(path)] = (
            status.st_mode,
            status.st_size,
            status.st_nlink - (path == root),
            status.st_mtime_ns * (path != root),
        )
    return found


@fuzz(examples=8, entries=ENTRIES, layout=LAYOUT, damages=DAMAGES, cut=CUT, there=st.booleans())
def test_nothing_is_written_outside_and_nothing_refused_appears(
    scratch: tuple[RemoteFileSystem, Path],
    entries: list[tuple[str, dict[str, object]]],
    layout: int,
    damages: list[Damage],
    cut: int | None,
    there: bool,
) -> None:
    place, root = scratch
    shutil.rmtree(root / "into", ignore_errors=True)
    outside = root / "outside"
    (outside / "a").mkdir(parents=True, exist_ok=True)
    (outside / "file").write_bytes(b"untouched")
    (root / "into").mkdir()
    if there:
        # Links that lead out of the directory, under the names that archives have.
        (root / "into" / "a").symlink_to(outside)
        (root / "into" / "b").symlink_to(outside / "file")
        (root / "into" / "c").mkdir()
        (root / "into" / "c" / "a").symlink_to("../../outside")
    before = facts(root)
    content = damaged(made(entries, layout, str(outside)[1:]), damages, cut)
    try:
        extract(place, b"into", pieces_of(content, 100_000), exact=True, tally=Tally())
        whole = True
    except (errors.ArchiveRefused, errors.TransferFailed, errors.OperationError):
        whole = False
    assert whole or there or list((root / "into").iterdir()) == []
    assert facts(root) == before
    assert (outside / "file").read_bytes() == b"untouched"
    assert litter(root / "into") == []
    for path in (root / "into").rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
        assert stat.S_ISLNK(mode) or mode & 0o7000 == 0
