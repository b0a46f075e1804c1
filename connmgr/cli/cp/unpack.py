"""Unpacks an archive into a local directory; no path below it may lead through a symbolic link."""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from connmgr.cli.cp.plan import Found, leads_out

PIECE_BYTES = 256 << 10
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacker:
    """Writes into ``root``, which is created if missing; each method raises OSError if it fails.

    Modes are those of the source without the bits of ``mask``.
    """

    def __init__(self, root: Path, mask: int) -> None:
        root.mkdir(exist_ok=True)
        self._mask = mask
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._at: tuple[str, int] | None = None
        self._numbers = iter(range(1 << 62))
        self._made: list[Found] = []

    def directory(self, one: Found) -> None:
        """Create a directory; an existing one stays as it is."""
        above, name = self._parted(one.path)
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
            self._made.append(one)
        os.close(os.open(name, _DIRECTORY, dir_fd=above))

    def link(self, one: Found, target: str) -> None:
        """Create a symbolic link, in place of a file or link."""
        above, name = self._parted(one.path)
        with self._draft(above, name) as draft:
            os.symlink(target, draft, dir_fd=above)

    def again(self, one: Found, other: str) -> None:
        """Create a hard link to the file ``other``, which came before."""
        _check(other)
        descriptor = self._opened(other.rpartition("/")[0])
        above, name = self._parted(one.path)
        try:
            with self._draft(above, name) as draft:
                base = other.rpartition("/")[2]
                os.link(base, draft, src_dir_fd=descriptor, dst_dir_fd=above, follow_symlinks=False)
        finally:
            os.close(descriptor)

    def file(self, one: Found, content: IO[bytes], moved: Callable[[int], None]) -> None:
        """Write a file, which gets its name when complete; ``moved`` is called with the bytes that have arrived."""
        above, name = self._parted(one.path)
        with self._draft(above, name) as draft, os.fdopen(os.open(draft, _NEW, 0o600, dir_fd=above), "wb") as file:
            while piece := content.read(PIECE_BYTES):
                file.write(piece)
                moved(len(piece))
            file.flush()
            os.fchmod(file.fileno(), one.mode & 0o777 & ~self._mask)
            os.utime(file.fileno(), (one.modified, one.modified))

    def close(self, *, times: bool) -> None:
        """Set the modes of the new directories, and with ``times`` their times."""
        for one in reversed(self._made):
            with suppress(OSError):
                descriptor = self._opened(one.path)
                try:
                    os.fchmod(descriptor, one.mode & 0o777 & ~self._mask)
                    if times:
                        os.utime(descriptor, (one.modified, one.modified))
                finally:
                    os.close(descriptor)
        if self._at is not None:
            os.close(self._at[1])
        os.close(self._root)

    @contextmanager
    def _draft(self, above: int, name: str) -> Iterator[str]:
        """Yield an unused name beside ``name``; at the end, the file of that name replaces ``name``."""
        draft = f".connmgr-{os.getpid()}-{next(self._numbers)}"
        try:
            yield draft
            os.rename(draft, name, src_dir_fd=above, dst_dir_fd=above)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=above)
            raise

    def _parted(self, path: str) -> tuple[int, str]:
        """Return the descriptor of the directory of ``path``, open until the next call, and the last name."""
        lead, _, name = path.rpartition("/")
        _check(path)
        if self._at is None or self._at[0] != lead:
            descriptor = self._opened(lead)
            if self._at is not None:
                os.close(self._at[1])
            self._at = lead, descriptor
        return self._at[1], name

    def _opened(self, path: str) -> int:
        """Open a directory below the root, following no links."""
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
        raise OSError(errno.EINVAL, "Such a path would lead out of the directory")


def path_in(member: tarfile.TarInfo) -> str:
    """Return a member's path without the prefix of all paths; empty for the directory itself."""
    return member.name.removeprefix("./").strip("/") if member.name != "." else ""
