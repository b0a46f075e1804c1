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

NOT_SENT = "Not sent: it cannot be read, or was removed meanwhile"
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

    def send(self, start: Path, plan: CopyPlan, end: RemotePath) -> None:
        """Send files below a local directory into one of a connection."""
        # In batches, because files get their names when their archive has arrived whole: an interrupted copy of a large
        # tree then goes on where it was.
        moved = self._mover(plan)
        for batch in _batches([*plan.directories, *plan.links, *plan.files]):
            if not self._send(start, batch, end, moved):
                return

    def _send(self, start: Path, batch: list[TreeEntry], end: RemotePath, moved: Callable[[int], None]) -> bool:
        """Send an archive; return whether the next one may succeed."""
        while batch:
            members: list[TreeEntry] = []
            try:
                result = self._extract(end, _pack(start, batch, self._report, members, moved))
            except Changed as changed:
                self._report.fail(HERE, start / changed.entry.path, "It became shorter while it was read")
                batch = [entry for entry in batch if entry.path != changed.entry.path]
                continue
            except ClientError as error:
                if isinstance(error, Unreachable):
                    raise
                names = ", ".join(entry.path for entry in batch[:3])
                self._report.fail(THERE, end, f"{error.message} Not there: {names}{', …' * (len(batch) > 3)}")
                return error.code not in HOPELESS
            self._count([entry for entry in members if entry.kind != DIRECTORY], self._record_failures(result, end))
            break
        return True

    def receive(self, start: RemotePath, plan: CopyPlan, end: Path) -> None:
        """Receive files of a directory of a connection into a local one, which is created if missing."""
        end.mkdir(exist_ok=True)
        tree, moved = LocalTree(end, self._options.umask), self._mover(plan)
        expected, complaints = {entry.path: entry for entry in (*plan.files, *plan.links)}, list[str]()
        try:
            for directory in plan.directories:
                with self._recording(end / directory.path):
                    tree.directory(directory)
            for members in plan.requests if expected else ():
                with self._archive(self._client, start, members) as archive:
                    complaints += self._unpack(archive, expected, end, tree, moved)
        finally:
            tree.close(times=self._options.keep)
        for line in complaints:
            self._report.fail(THERE, start, line.removeprefix("tar: "))
        for path in () if complaints else expected:
            self._report.fail(THERE, start.child(path), NOT_SENT)

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
                # tarfile keeps every member in this list, even in the mode for streams (r|).
                members.members.clear()
                complaints += member.pax_headers.get(FAILED, "").splitlines()
                entry = expected.pop(_path_in(member), None)
                if entry is None:
                    # Files that came into the directory since it was listed are passed over, but not without end: the
                    # machine may be hostile.
                    unexpected += member.size
                    if unexpected > UNEXPECTED_BYTES:
                        raise ClientError(
                            "The connection sends files that were not asked for; nothing more is read from it.",
                            "transfer_failed",
                            0,
                        )
                    continue
                with self._recording(end / entry.path):
                    _unpack_member(tree, members, member, entry, moved)
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
        self, start: RemotePath, plan: CopyPlan, end: RemotePath, listed: Callable[[], Iterable[TreeEntry]]
    ) -> None:
        """Pass files of a directory of a connection into one of another, which is created if missing.

        Nobody reads the archives on the way; what ``listed`` lists in ``end`` afterwards shows what has arrived.
        """
        if plan.is_empty:
            return
        moved, entries = self._mover(plan), [*plan.files, *plan.links]
        failed: set[str] = set()
        with self._client.clone() as reading:
            for members in plan.requests:
                with self._archive(reading, start, members) as archive:
                    result = self._extract(end, _watch(iter(archive), moved))
                failed |= self._record_failures(result, end)
        there = {entry.path for entry in listed()}
        for entry in entries:
            if entry.path not in there and not _is_in_any(entry.path, failed):
                self._report.fail(THERE, start.child(entry.path), NOT_SENT)
                failed.add(entry.path)
        self._count(entries, failed)

    def _archive(self, client: Client, start: RemotePath, members: Sequence[str]) -> Download:
        return client.fs.archive(start.connection, start.directory, members, session=start.session)

    def _extract(self, end: RemotePath, pieces: Iterator[bytes]) -> Extracted:
        return self._client.fs.extract(
            end.connection, pieces, end.directory, exact=self._options.keep, session=end.session
        )

    def _mover(self, plan: CopyPlan) -> Callable[[int], None]:
        """Return the function that is called with the number of bytes as they move."""
        total, position = plan.bytes, 0

        def moved(size: int) -> None:
            nonlocal position
            position += size
            if self._progress is not None:
                self._progress(position, max(total, position))

        return moved

    def _record_failures(self, result: Extracted, end: RemotePath) -> set[str]:
        """Record the members of an archive that could not be put in place, and return their paths."""
        for failed in result.failed:
            self._report.fail(THERE, end.child(failed.path), failed.message)
        return {failed.path for failed in result.failed}

    def _count(self, entries: Sequence[TreeEntry], failed: set[str]) -> None:
        arrived = [entry for entry in entries if not _is_in_any(entry.path, failed)]
        self._report.files += len(arrived)
        self._report.bytes += sum(entry.size for entry in arrived if entry.kind == FILE)


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


def _pack(
    root: Path,
    entries: Iterable[TreeEntry],
    report: CopyReport,
    members: list[TreeEntry],
    moved: Callable[[int], None],
) -> Iterator[bytes]:
    """Yield the archive of ``entries`` below ``root`` in pieces; add those in it to ``members``.

    Files that cannot be read are left out and recorded. ``moved`` is called with the bytes of content sent.
    :raises Changed: a large file became shorter.
    """
    buffer = bytearray()
    for entry in entries:
        for piece in _member(root, entry, report, members, moved):
            buffer += piece
            if len(buffer) >= PIECE_BYTES:
                yield bytes(buffer)
                buffer.clear()
    yield bytes(buffer) + bytes(2 * BLOCK_BYTES)


def _member(
    root: Path, entry: TreeEntry, report: CopyReport, members: list[TreeEntry], moved: Callable[[int], None]
) -> Iterator[bytes]:
    if entry.kind in _TYPES:
        members.append(entry)
        yield _header(entry)
        return
    try:
        file = os.fdopen(os.open(root / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        report.fail(HERE, root / entry.path, error.strerror or str(error))
        return
    with file:
        yield from _content(root, entry, file, report, members, moved)


def _content(
    root: Path,
    entry: TreeEntry,
    file: IO[bytes],
    report: CopyReport,
    members: list[TreeEntry],
    moved: Callable[[int], None],
) -> Iterator[bytes]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        report.fail(HERE, root / entry.path, NO_FILE)
        return
    # The header of a tar member comes before its content, and has its size. A small file is read first, so that the
    # two agree even if somebody writes it now; a large one that became shorter spoils the archive (Changed).
    try:
        first = file.read(min(status.st_size, PIECE_BYTES))
    except OSError as error:
        report.fail(HERE, root / entry.path, error.strerror or str(error))
        return
    left = status.st_size if status.st_size > PIECE_BYTES else len(first)
    members.append(entry)
    yield _header(entry._replace(size=left))
    padding = bytes(-left % BLOCK_BYTES)
    piece = first
    while left:
        if not piece:
            raise Changed(entry)
        yield piece
        moved(len(piece))
        left -= len(piece)
        piece = file.read(min(left, PIECE_BYTES))
    yield padding


def _header(entry: TreeEntry) -> bytes:
    info = tarfile.TarInfo(f"./{entry.path}")
    info.type = _TYPES.get(entry.kind, tarfile.REGTYPE)
    info.mode, info.mtime, info.linkname = entry.mode & 0o777, max(0, int(entry.modified // 1)), entry.target
    info.size = entry.size if entry.kind not in _TYPES else 0
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _unpack_member(
    tree: LocalTree,
    members: tarfile.TarFile,
    member: tarfile.TarInfo,
    expected: TreeEntry,
    moved: Callable[[int], None],
) -> None:
    entry = expected._replace(mode=member.mode, modified=int(member.mtime))
    if member.islnk():
        tree.again(entry, member.linkname.removeprefix("./"))
    elif member.issym():
        if expected.kind == LINK:
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


def _watch(pieces: Iterator[bytes], moved: Callable[[int], None]) -> Iterator[bytes]:
    for piece in pieces:
        moved(len(piece))
        yield piece
