"""The side of ``connmgr cp`` on this machine: lists directories, compares files, and replaces files by drafts.

No path below a directory that is written may lead through a symbolic link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from connmgr.cli.copy.plan import DIRECTORY, FILE, HERE, LINK, OTHER, CopyReport, TreeEntry, leads_out

PIECE_BYTES = 256 << 10
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def listing(root: Path, report: CopyReport) -> list[TreeEntry]:
    """Return the content of a local directory, sorted; unreadable entries are recorded in ``report``."""
    return sorted(_below(root, "", report))


def _below(directory: Path, lead: str, report: CopyReport) -> Iterator[TreeEntry]:
    try:
        entries = [*os.scandir(directory)]
    except OSError as error:
        report.fail(HERE, directory, error.strerror or str(error))
        return
    for entry in entries:
        try:
            described = of_status(lead + entry.name, entry.stat(follow_symlinks=False))
            if described.kind == LINK:
                described = described._replace(target=str(Path(entry.path).readlink()))
        except OSError as error:
            report.fail(HERE, entry.path, error.strerror or str(error))
            continue
        yield described
        if described.kind == DIRECTORY:
            yield from _below(Path(entry.path), f"{described.path}/", report)


def of_status(path: str, status: os.stat_result) -> TreeEntry:
    """Return the description of a local file."""
    kinds = {stat.S_IFREG: FILE, stat.S_IFDIR: DIRECTORY, stat.S_IFLNK: LINK}
    kind = kinds.get(stat.S_IFMT(status.st_mode), OTHER)
    return TreeEntry(path, kind, status.st_size, stat.S_IMODE(status.st_mode), status.st_mtime)


def checksums(root: Path, paths: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of the readable files below ``root``, and of ``root`` itself for the empty path."""
    digests = {path: _checksum(root / path, os.O_NOFOLLOW if path else 0) for path in paths}
    return {path: digest for path, digest in digests.items() if digest is not None}


def _checksum(path: Path, flags: int) -> str | None:
    # Imported here, because it loads OpenSSL, which most copies do not need.
    import hashlib

    digest = hashlib.sha256()
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
    except OSError:
        return None
    return digest.hexdigest()


@contextmanager
def replacing(target: Path, mode: int, *, keeps_mode: bool, modified: float | None) -> Iterator[IO[bytes]]:
    """Open a new file that replaces ``target`` once it is complete; a device or pipe is written directly.

    With ``keeps_mode`` an existing file keeps its mode; where it is a link, the file that it leads to is replaced.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as device:
            yield device
        return
    # The draft must be in the directory of the file itself: a rename would replace the link.
    target = Path(os.path.realpath(target))
    if keeps_mode and target.exists():
        mode = stat.S_IMODE(target.stat().st_mode)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _new_file(directory, target.name, mode, modified) as file:
            yield file
    finally:
        os.close(directory)


@contextmanager
def _new_file(directory: int, name: str, mode: int, modified: float | None) -> Iterator[IO[bytes]]:
    """Yield a new file, which gets its name in the directory with this descriptor when the block ends."""
    with _draft(directory, name) as draft, os.fdopen(os.open(draft, _NEW, 0o600, dir_fd=directory), "wb") as file:
        yield file
        file.flush()
        os.fchmod(file.fileno(), mode)
        if modified is not None:
            os.utime(file.fileno(), (modified, modified))


@contextmanager
def _draft(directory: int, name: str) -> Iterator[str]:
    """Yield an unused name beside ``name``; at the end, the file of that name replaces ``name``."""
    draft = f".connmgr-{os.urandom(6).hex()}"
    try:
        yield draft
        os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=directory)
        raise


class LocalTree:
    """Writes into the directory ``root``; each method raises OSError if it fails.

    Modes are those of the source without the bits of ``mask``.
    """

    def __init__(self, root: Path, mask: int) -> None:
        self._mask = mask
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._at: tuple[str, int] | None = None
        self._new_directories: list[TreeEntry] = []

    def directory(self, entry: TreeEntry) -> None:
        """Create a directory; an existing one stays as it is."""
        above, name = self._locate(entry.path)
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
            self._new_directories.append(entry)
        os.close(os.open(name, _DIRECTORY, dir_fd=above))

    def link(self, entry: TreeEntry, target: str) -> None:
        """Create a symbolic link, in place of a file or link."""
        above, name = self._locate(entry.path)
        with _draft(above, name) as draft:
            os.symlink(target, draft, dir_fd=above)

    def again(self, entry: TreeEntry, other: str) -> None:
        """Create a hard link to the file ``other``, which came before."""
        _check(other)
        descriptor = self._open(other.rpartition("/")[0])
        above, name = self._locate(entry.path)
        try:
            with _draft(above, name) as draft:
                base = other.rpartition("/")[2]
                os.link(base, draft, src_dir_fd=descriptor, dst_dir_fd=above, follow_symlinks=False)
        finally:
            os.close(descriptor)

    def file(self, entry: TreeEntry, content: IO[bytes], moved: Callable[[int], None]) -> None:
        """Write a file, which gets its name when complete; ``moved`` is called with the bytes that have arrived."""
        above, name = self._locate(entry.path)
        with _new_file(above, name, entry.mode & 0o777 & ~self._mask, entry.modified) as file:
            while piece := content.read(PIECE_BYTES):
                file.write(piece)
                moved(len(piece))

    def close(self, *, times: bool) -> None:
        """Set the modes of the new directories, and with ``times`` their times."""
        # Now, because a directory without the right to write could not have been filled; and from the deepest up, since
        # each new file changes the time of its directory.
        for entry in reversed(self._new_directories):
            with suppress(OSError):
                descriptor = self._open(entry.path)
                try:
                    os.fchmod(descriptor, entry.mode & 0o777 & ~self._mask)
                    if times:
                        os.utime(descriptor, (entry.modified // 1, entry.modified // 1))
                finally:
                    os.close(descriptor)
        if self._at is not None:
            os.close(self._at[1])
        os.close(self._root)

    def _locate(self, path: str) -> tuple[int, str]:
        """Return the descriptor of the directory of ``path``, open until the next call, and the last name."""
        lead, _, name = path.rpartition("/")
        _check(path)
        if self._at is None or self._at[0] != lead:
            descriptor = self._open(lead)
            if self._at is not None:
                os.close(self._at[1])
            self._at = lead, descriptor
        return self._at[1], name

    def _open(self, path: str) -> int:
        """Open a directory below the root, following no links."""
        # Part by part with O_NOFOLLOW: a machine could send a link to / and then a file "below" it.
        descriptor = os.dup(self._root)
        for part in path.split("/") if path else []:
            try:
                inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor


def _check(path: str) -> None:
    if leads_out(path):
        raise OSError(errno.EINVAL, "The path leads out of the directory")
