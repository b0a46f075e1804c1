"""Sends and receives files in pieces."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO

from connmgr.client.errors import ClientError, Unreachable
from connmgr.client.wire import Response, WireError

PIECE_BYTES = 256 * 1024
SOURCE_FAILED = "source_failed"
"""The error code for a source that cannot be read."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes transferred and the total, which is None if unknown."""


class Download:
    """A file, or an archive for :mod:`tarfile` with ``mode="r|"``, that is being received.

    ``size`` is in bytes, None for an archive. It occupies the client's connection until it is closed, for example by a
    context manager.
    """

    def __init__(self, response: Response) -> None:
        self._response = response
        self._received = 0
        length = response.headers.get("content-length")
        self.size = int(length) if length else None

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content in pieces; raise :class:`Unreachable` if the connection breaks before the end."""
        while piece := self.read(PIECE_BYTES):
            yield piece

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none at the end; raises as the iteration."""
        try:
            piece = self._response.read1(size)
        except (OSError, WireError) as error:
            of = "" if self.size is None else f" of {self.size}"
            raise Unreachable(f"What was sent broke off after {self._received}{of} bytes.", sent=True) from error
        self._received += len(piece)
        return piece

    def close(self) -> None:
        """Release the connection, and discard what was not read."""
        self._response.close()


Source = IO[bytes] | Download


class Upload:
    """Reads ``source`` while it is sent, and reports to ``progress``.

    ``length`` is the number of bytes left in a regular file, or the size of a download.
    """

    def __init__(self, source: Source, progress: Progress | None) -> None:
        self._source = source
        self._progress = progress
        self.length = source.size if isinstance(source, Download) else _length(source)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes to send.

        :raises ClientError: the file cannot be read, or became shorter meanwhile.
        """
        sent = 0
        for piece in self._source if isinstance(self._source, Download) else self._pieces(self._source):
            sent += len(piece)
            yield piece
            if self._progress is not None:
                self._progress(sent, self.length)
        if self.length is not None and sent < self.length:
            raise ClientError(f"The file to send ended after {sent} of {self.length} bytes.", SOURCE_FAILED, 0)

    def _pieces(self, source: IO[bytes]) -> Iterator[bytes]:
        left = self.length
        try:
            while piece := source.read(PIECE_BYTES if left is None else min(PIECE_BYTES, left)):
                left = None if left is None else left - len(piece)
                yield piece
        except OSError as error:
            message = f"The file to send cannot be read: {error.strerror or error}"
            raise ClientError(message, SOURCE_FAILED, 0) from error


def _length(source: IO[bytes]) -> int | None:
    try:
        status = os.fstat(source.fileno())
        if stat.S_ISREG(status.st_mode):
            return max(0, status.st_size - source.tell())
    except (OSError, io.UnsupportedOperation, AttributeError):
        pass
    return None
