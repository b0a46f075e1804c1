"""The files of the page as they are delivered: each is read, hashed and packed once, until it changes on the disk.

Comments are for whoever reads the tree, and would be a seventh of what a browser fetches. In our own files the lines
that are only comments are delivered empty, and types within the code and the indentation are left out. Lines keep their
numbers, so a fault on the browser's console names the line of the file.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent / "page"

_COMMENT = re.compile(rb"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/[ \t]*)$", re.MULTILINE | re.DOTALL)
"""A comment without code on its lines. No text of our files has such a line: a test compares what is left."""

_TYPE = re.compile(rb"(?<![\w$])/\*\* @[^\n]*?\*/ ?")
"""A comment with the type of what follows it. The same test finds a text that has one."""

_INDENTATION = re.compile(rb"^[ \t]+", re.MULTILINE)
"""Blanks that mean nothing: only the templates of elements are texts over several lines, and in them a line end with
its blanks is one blank or none. The same test finds another such text."""


@dataclass(frozen=True)
class PackedFile:
    """A file's ``content`` as it is delivered, packed by gzip, and the ``digest`` of that content."""

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
            # What others have written has their licences in its comments.
            if not name.startswith("vendor/"):
                content = _COMMENT.sub(lambda found: b"\n" * found[0].count(b"\n"), content)
                content = _INDENTATION.sub(b"", _TYPE.sub(b"", content))
            # The best level: it takes four times as long as the usual one, and is paid once.
            packed = gzip.compress(content, 9, mtime=0)
            known = self._packed[name] = PackedFile(version, packed, hashlib.sha256(content).hexdigest()[:32])
        return known
