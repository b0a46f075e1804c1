"""The files of the page as they are delivered: each is read, hashed and packed once, until it changes on the disk."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent / "page"


@dataclass(frozen=True)
class PackedFile:
    """A file's ``content`` packed by gzip, and the ``digest`` of the content as it is on the disk."""

    version: tuple[int, int, int]
    """The inode, the size and the time of the last change of the file that was read."""

    packed: bytes
    digest: str

    @property
    def content(self) -> bytes:
        """The content, for the rare client that does not unpack it itself."""
        return gzip.decompress(self.packed)


class PageFiles:
    """The packed files of the page that were asked for; safe to use from several threads.

    It holds at most one entry for each file of the page's directory: some 300 KiB for all of them.
    """

    def __init__(self, directory: Path = PAGE) -> None:
        self._directory = directory
        self._packed: dict[str, PackedFile] = {}

    def get(self, name: str) -> PackedFile:
        """Return the file ``name``, a path below the directory.

        :raises OSError: the file does not exist, or cannot be read.
        """
        path = self._directory / name
        status = path.stat()
        version = status.st_ino, status.st_size, status.st_mtime_ns
        known = self._packed.get(name)
        if known is None or known.version != version:
            content = path.read_bytes()
            # The best level: it takes four times as long as the usual one, and is paid once.
            packed = gzip.compress(content, 9, mtime=0)
            known = self._packed[name] = PackedFile(version, packed, hashlib.sha256(content).hexdigest()[:32])
        return known
