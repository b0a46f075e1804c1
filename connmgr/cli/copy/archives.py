"""The content of a directory as archives: packed here or there, and unpacked here or there."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from connmgr.cli.copy.local import PIECE_BYTES, LocalTree
from connmgr.cli.copy.plan import (
    DIRECTORY,
    FILE,
    HERE,
    LINK,
    THERE,
    CopyOptions,
    CopyPlan,
    CopyReport,
    RemotePath,
    TreeEntry,
)
from connmgr.client import Client, ClientError, Download, Extracted, Progress, Unreachable
from connmgr.client.files import FAILED

BATCH_BYTES = 64 << 20
BATCH_FILES = 5000
"""An archive ends after so many files or bytes; its files then get their names."""

UNEXPECTED_BYTES = 64 << 20
"""Bytes of files that were not asked for, which a connection may send."""

NOT_SENT = "It was not sent: it cannot be read, or is gone"
NO_FILE = "No longer a regular file; skipped"

HOPELESS = {"no_such_directory", "permission_denied", "wrong_file_type", "no_space", "tar_missing", "no_shell"}
"""Codes of errors that the next archive would also run into."""

BLOCK_BYTES = tarfile.BLOCKSIZE
_TYPES = {DIRECTORY: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE}


class Archives:
    """Transfers what was planned of one directory, and records in ``report`` what has arrived and what has not."""

    def __init__(self, client: Client, options: CopyOptions, report: CopyReport, progress: Progress | None) -> None:
        self._client = client
        self._options = options
        self._report = report
        self._progress = progress

    def send(self, start: Path, chosen: CopyPlan, end: RemotePath) -> None:
        """Send files below a local directory into one of a connection."""
        moved = self._mover(chosen)
        for batch in _batches([*chosen.directories, *chosen.links, *chosen.files]):
            if not self._send(start, batch, end, moved):
                return

    def _send(self, start: Path, batch: list[TreeEntry], end: RemotePath, moved: Callable[[int], None]) -> bool:
        """Send an archive; return whether the next one may succeed."""
        while batch:
            sent: list[TreeEntry] = []
            try:
                done = self._extracted(end, _packed(start, batch, self._report, sent, moved))
            except Changed as changed:
                self._report.fail(HERE, start / changed.entry.path, "It became shorter while it was read")
                batch = [one for one in batch if one.path != changed.entry.path]
                continue
            except ClientError as error:
                if isinstance(error, Unreachable):
                    raise
                names = ", ".join(one.path for one in batch[:3])
                self._report.fail(THERE, end, f"{error.message} Not there: {names}{', …' * (len(batch) > 3)}")
                return error.code not in HOPELESS
            self._count([one for one in sent if one.kind != DIRECTORY], self._failed(done, end))
            break
        return True

    def receive(self, start: RemotePath, chosen: CopyPlan, end: Path) -> None:
        """Receive files of a directory of a connection into a local one, which is created if missing."""
        end.mkdir(exist_ok=True)
        tree, moved = LocalTree(end, self._options.umask), self._mover(chosen)
        expected, complaints = {one.path: one for one in (*chosen.files, *chosen.links)}, list[str]()
        try:
            for directory in chosen.directories:
                with self._recording(end / directory.path):
                    tree.directory(directory)
            for members in chosen.requests if expected else ():
                with self._archive(self._client, start, members) as archive:
                    complaints += self._unpack(archive, expected, end, tree, moved)
        finally:
            tree.close(times=self._options.keep)
        for line in complaints:
            self._report.fail(THERE, start, line.removeprefix("tar: "))
        for path in () if complaints else expected:
            self._report.fail(THERE, start.named(path), NOT_SENT)

    def _unpack(
        self,
        archive: Download,
        expected: dict[str, TreeEntry],
        end: Path,
        tree: LocalTree,
        moved: Callable[[int], None],
    ) -> list[str]:
        """Unpack, removing what arrives from ``expected``; return the machine's messages about unreadable files."""
        unexpected, complaints = 0, list[str]()
        with tarfile.open(fileobj=archive, mode="r|", encoding="utf-8", errors="surrogateescape") as members:  # type: ignore[call-overload]
            for member in members:
                # tarfile would keep every member in memory.
                members.members.clear()
                complaints += member.pax_headers.get(FAILED, "").splitlines()
                one = expected.pop(_path_in(member), None)
                if one is None:
                    unexpected += member.size
                    if unexpected > UNEXPECTED_BYTES:
                        raise ClientError("The connection sends files that nobody asked for.", "transfer_failed", 0)
                    continue
                with self._recording(end / one.path):
                    _unpack_member(tree, members, member, one, moved)
                    self._report.files += 1
                    self._report.bytes += member.size
        return complaints

    @contextmanager
    def _recording(self, path: Path) -> Iterator[None]:
        """Record in the report that a local file could not be written."""
        try:
            yield
        except OSError as error:
            self._report.fail(HERE, path, error.strerror or str(error))

    def relay(
        self, start: RemotePath, chosen: CopyPlan, end: RemotePath, listed: Callable[[], Iterable[TreeEntry]]
    ) -> None:
        """Pass files of a directory of a connection into one of another, which is created if missing.

        Nobody reads the archives on the way; what ``listed`` lists in ``end`` afterwards shows what has arrived.
        """
        if chosen.is_empty:
            return
        moved, wanted = self._mover(chosen), [*chosen.files, *chosen.links]
        failed: set[str] = set()
        with self._client.clone() as reading:
            for members in chosen.requests:
                with self._archive(reading, start, members) as archive:
                    done = self._extracted(end, _watched(iter(archive), moved))
                failed |= self._failed(done, end)
        there = {one.path for one in listed()}
        for one in wanted:
            if one.path not in there and not _is_in_any(one.path, failed):
                self._report.fail(THERE, start.named(one.path), NOT_SENT)
                failed.add(one.path)
        self._count(wanted, failed)

    def _archive(self, client: Client, start: RemotePath, members: Sequence[str]) -> Download:
        return client.fs.archive(start.connection, start.directory, members, session=start.session)

    def _extracted(self, end: RemotePath, pieces: Iterator[bytes]) -> Extracted:
        return self._client.fs.extract(
            end.connection, pieces, end.directory, exact=self._options.keep, session=end.session
        )

    def _mover(self, chosen: CopyPlan) -> Callable[[int], None]:
        """Return the function that is called with the number of bytes as they move."""
        total, done = chosen.bytes, 0

        def moved(size: int) -> None:
            nonlocal done
            done += size
            if self._progress is not None:
                self._progress(done, max(total, done))

        return moved

    def _failed(self, done: Extracted, end: RemotePath) -> set[str]:
        """Record the members of an archive that could not be put in place, and return their paths."""
        for failed in done.failed:
            self._report.fail(THERE, end.named(failed.path), failed.message)
        return {failed.path for failed in done.failed}

    def _count(self, sent: Sequence[TreeEntry], failed: set[str]) -> None:
        arrived = [one for one in sent if not _is_in_any(one.path, failed)]
        self._report.files += len(arrived)
        self._report.bytes += sum(one.size for one in arrived if one.kind == FILE)


class Changed(Exception):
    """A file became shorter while it was read, so the archive is useless."""

    def __init__(self, entry: TreeEntry) -> None:
        super().__init__(entry.path)
        self.entry = entry


def _batches(entries: Sequence[TreeEntry]) -> Iterator[list[TreeEntry]]:
    batch: list[TreeEntry] = []
    size = files = 0
    for entry in entries:
        if batch and (size >= BATCH_BYTES or files >= BATCH_FILES):
            yield batch
            batch, size, files = [], 0, 0
        batch.append(entry)
        size += entry.size if entry.kind == FILE else 0
        files += entry.kind != DIRECTORY
    if batch:
        yield batch


def _packed(
    root: Path,
    entries: Iterable[TreeEntry],
    report: CopyReport,
    sent: list[TreeEntry],
    moved: Callable[[int], None],
) -> Iterator[bytes]:
    """Yield the archive of ``entries`` below ``root`` in pieces; add those in it to ``sent``.

    Files that cannot be read are left out and recorded. ``moved`` is called with the bytes of content sent.
    :raises Changed: a large file became shorter.
    """
    held = bytearray()
    for entry in entries:
        for piece in _member(root, entry, report, sent, moved):
            held += piece
            if len(held) >= PIECE_BYTES:
                yield bytes(held)
                held.clear()
    yield bytes(held) + bytes(2 * BLOCK_BYTES)


def _member(
    root: Path, one: TreeEntry, report: CopyReport, sent: list[TreeEntry], moved: Callable[[int], None]
) -> Iterator[bytes]:
    if one.kind in _TYPES:
        sent.append(one)
        yield _header(one)
        return
    try:
        file = os.fdopen(os.open(root / one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        report.fail(HERE, root / one.path, error.strerror or str(error))
        return
    with file:
        yield from _content(root, one, file, report, sent, moved)


def _content(
    root: Path,
    one: TreeEntry,
    file: IO[bytes],
    report: CopyReport,
    sent: list[TreeEntry],
    moved: Callable[[int], None],
) -> Iterator[bytes]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        report.fail(HERE, root / one.path, NO_FILE)
        return
    # A file of up to a piece is read before its header, which so has the size that it really has.
    try:
        first = file.read(min(status.st_size, PIECE_BYTES))
    except OSError as error:
        report.fail(HERE, root / one.path, error.strerror or str(error))
        return
    left = status.st_size if status.st_size > PIECE_BYTES else len(first)
    sent.append(one)
    yield _header(one._replace(size=left))
    padding = bytes(-left % BLOCK_BYTES)
    piece = first
    while left:
        if not piece:
            raise Changed(one)
        yield piece
        moved(len(piece))
        left -= len(piece)
        piece = file.read(min(left, PIECE_BYTES))
    yield padding


def _header(one: TreeEntry) -> bytes:
    info = tarfile.TarInfo(f"./{one.path}")
    info.type = _TYPES.get(one.kind, tarfile.REGTYPE)
    info.mode, info.mtime, info.linkname = one.mode & 0o777, max(0, int(one.modified // 1)), one.target
    info.size = one.size if one.kind not in _TYPES else 0
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _unpack_member(
    tree: LocalTree, members: tarfile.TarFile, member: tarfile.TarInfo, one: TreeEntry, moved: Callable[[int], None]
) -> None:
    entry = one._replace(mode=member.mode, modified=int(member.mtime))
    if member.islnk():
        tree.again(entry, member.linkname.removeprefix("./"))
    elif member.issym():
        if one.kind == LINK:
            tree.link(entry, member.linkname)
    else:
        content = members.extractfile(member)
        if content is None:
            raise OSError(0, NO_FILE)
        tree.file(entry, content, moved)


def _path_in(member: tarfile.TarInfo) -> str:
    """Return a member's path without the prefix of all paths; empty for the directory itself."""
    return member.name.removeprefix("./").strip("/") if member.name != "." else ""


def _is_in_any(path: str, trees: set[str]) -> bool:
    if not trees:
        return False
    parts = path.split("/")
    return any("/".join(parts[:count]) in trees for count in range(1, len(parts) + 1))


def _watched(pieces: Iterator[bytes], moved: Callable[[int], None]) -> Iterator[bytes]:
    for piece in pieces:
        moved(len(piece))
        yield piece
