"""Writes local files as an archive."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from connmgr.cli.cp.ledger import HERE, Ledger
from connmgr.cli.cp.plan import DIRECTORY, LINK, Found

PIECE_BYTES = 256 << 10
"""Bytes sent at once; a file up to this size is read before its header is sent."""

BLOCK_BYTES = tarfile.BLOCKSIZE
_TYPES = {DIRECTORY: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE}


class Changed(Exception):
    """A file became shorter while it was read, so the archive is useless."""

    def __init__(self, found: Found) -> None:
        super().__init__(found.path)
        self.found = found


def pack(
    root: Path, entries: Iterable[Found], ledger: Ledger, sent: list[Found], moved: Callable[[int], None]
) -> Iterator[bytes]:
    """Yield the archive of ``entries`` below ``root`` in pieces; add those in it to ``sent``.

    Files that cannot be read are left out and recorded. ``moved`` is called with the bytes of content sent.
    :raises Changed: a large file became shorter.
    """
    held = bytearray()
    for one in entries:
        for piece in _member(root, one, ledger, sent, moved):
            held += piece
            if len(held) >= PIECE_BYTES:
                yield bytes(held)
                held.clear()
    yield bytes(held) + bytes(2 * BLOCK_BYTES)


def _member(root: Path, one: Found, ledger: Ledger, sent: list[Found], moved: Callable[[int], None]) -> Iterator[bytes]:
    if one.kind in _TYPES:
        sent.append(one)
        yield _header(one)
        return
    try:
        file = os.fdopen(os.open(root / one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        ledger.fail(HERE, root / one.path, error.strerror or str(error))
        return
    with file:
        yield from _content(root, one, file, ledger, sent, moved)


def _content(
    root: Path, one: Found, file: IO[bytes], ledger: Ledger, sent: list[Found], moved: Callable[[int], None]
) -> Iterator[bytes]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        ledger.fail(HERE, root / one.path, "It is a file no more")
        return
    try:
        first = file.read(min(status.st_size, PIECE_BYTES))
    except OSError as error:
        ledger.fail(HERE, root / one.path, error.strerror or str(error))
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


def _header(one: Found) -> bytes:
    info = tarfile.TarInfo(f"./{one.path}")
    info.type = _TYPES.get(one.kind, tarfile.REGTYPE)
    info.mode, info.mtime, info.linkname = one.mode & 0o777, max(0, one.modified), one.target
    info.size = one.size if one.kind not in _TYPES else 0
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
