"""The files of an audit trail: the current one, and older ones."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from connmgr.errors import StartupError
from connmgr.rights.chain import Chain, link_of
from connmgr.vault.sqlite import sync_directory

FILE_NAME = "audit.log"
KEPT_FILES = 8
"""Number of files kept: ``audit.log``, then ``audit.log.1``, the newest of the older ones, and so on.

One more is kept until the vault has stored the new beginning of the trail.
"""

_BLOCK_BYTES = 64 * 1024
_ATTEMPTS = 20


def older(path: Path, number: int) -> Path:
    """Return the file ``number`` of the trail with the current file ``path``, which is number 0."""
    return path.with_name(f"{path.name}.{number}") if number else path


def open_for_writing(path: Path) -> int:
    """Return a descriptor that appends to ``path``.

    :raises StartupError: the file cannot be written, is not ours, or is open to others.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise StartupError(f"The audit trail {path} cannot be written: {error.strerror}.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise StartupError(f"The audit trail {path} must be a file of your own, closed to others: run chmod 600 {path}")
    sync_directory(path.parent)
    return descriptor


@contextlib.contextmanager
def opened(path: Path) -> Iterator[list[BinaryIO]]:
    """Open all files of a trail for reading, the newest first, also while a daemon renames them.

    :raises OSError: one cannot be read.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as stack:
            current, files = _identity(path), _opened(path, stack)
            # If a file was renamed meanwhile, it is found by its new name, or opened again.
            if _identity(path) == current:
                yield files
                return
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))


def _opened(path: Path, stack: contextlib.ExitStack) -> list[BinaryIO]:
    found: dict[object, BinaryIO] = {}
    for number in range(KEPT_FILES + 1):
        with contextlib.suppress(FileNotFoundError):
            # pathlib knows no opener, and ruff no ExitStack around a call.
            file = open(older(path, number), "rb", opener=_open_to_read)  # noqa: SIM115
            stack.enter_context(file)
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "Not a file", str(older(path, number)))
            found.setdefault(_identity(file.fileno()), file)
    return list(found.values())


def _identity(file: Path | int) -> object:
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(file)  # noqa: PTH116 - a descriptor too
        return status.st_dev, status.st_ino
    return None


def backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """Yield the lines of ``file`` before the offset ``end``, without line feeds, the last one first.

    The first result is the text after the last line feed: empty, unless a line is incomplete.
    """
    rest = b""
    while end:
        size = min(end, _BLOCK_BYTES)
        end -= size
        file.seek(end)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
    yield rest


def first_number(path: Path) -> int:
    """Return the number of the first entry in a file of a chained trail, 0 for any other file or none."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        link = link_of(file.readline())
        return link.seq if link else 0
    return 0


@dataclass(frozen=True)
class End:
    """The last entry of a trail: its number (0 without one), and in a chained trail its line and the trail."""

    number: int
    line: bytes = b""
    trail: str | None = None


def find_end(path: Path) -> End:
    """Return the end of the trail ``path``; entries without a chain count if there are no others."""
    unchained, end = 0, None
    with opened(path) as files:
        for file in files:
            for line in () if end else backwards(file, file.seek(0, os.SEEK_END)):
                link = link_of(line + b"\n")
                if link:
                    end = End(link.seq, line + b"\n")
                    break
                unchained = unchained or _number(line)
            file.seek(0)
            first = link_of(file.readline())
            if end and first and first.trail:
                return End(end.number, end.line, first.trail)
    return end or End(unchained)


def reaches(path: Path, chain: Chain, hash: str) -> bool:
    """Whether the chain leads from the end of the trail ``path`` back to the line with ``hash``, each line intact."""
    expected = None
    with opened(path) as files:
        for file in files:
            for line in backwards(file, file.seek(0, os.SEEK_END)):
                link, own = link_of(line + b"\n"), chain.hash(line + b"\n")
                # The text after a file's last line feed is empty.
                if line and (link is None or expected not in (None, own)):
                    return False
                if link and hash in (own, link.previous):
                    return True
                expected = link.previous if link else expected
    return False


def drop_half_a_line(descriptor: int) -> bytes:
    """Cut off the text after the last line feed, left by a crash or a full disk, and return it."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        end = file.seek(0, os.SEEK_END)
        dropped = next(backwards(file, end))
    if dropped:
        os.ftruncate(descriptor, end - len(dropped))
    return dropped


def _open_to_read(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _number(line: bytes) -> int:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return int(json.loads(line)["seq"])
    return 0
