"""Files that are sent and received in pieces."""

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
"""The code of the error for a source that cannot be read."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes transferred and the total, which is None if unknown."""


class Download:
    """The content of a file, iterated in pieces; ``size`` is in bytes.

    It occupies the client's connection until it is closed, as a context manager does.
    """

    def __init__(self, response: Response, close: Callable[[], None]) -> None:
        self._response = response
        self._close = close
        self._received = 0
        self.size = int(response.headers["content-length"])

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the file's bytes.

        :raises Unreachable: the connection broke before the end.
        """
        while self._received < self.size:
            try:
                piece = self._response.read1(PIECE_BYTES)
            except (OSError, WireError) as error:
                raise self._broken() from error
            if not piece:
                raise self._broken()
            self._received += len(piece)
            yield piece

    def close(self) -> None:
        """Release the connection, and give up what was not read."""
        if self._received < self.size:
            self._close()
        self._response.close()

    def _broken(self) -> Unreachable:
        return Unreachable(f"The file broke off after {self._received} of {self.size} bytes.", sent=True)


Source = IO[bytes] | Download


class Upload:
    """Reads ``source`` while it is sent, and reports to ``progress``.

    ``length`` is the rest of a regular file, or the size of a download.
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
