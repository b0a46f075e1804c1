"""A request body that is used while it arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

More = Callable[[], bool]
"""Receives more of a body; returns False when it is complete."""


class Inflow:
    """The bytes of one body: the parser of its request appends them, and the answering thread takes them, once.

    Bytes are received only on demand, so a client that sends faster must wait. The server sets ``more`` when a thread
    begins to answer. Until then, and always if the whole request came at once, there are only the bytes that came with
    the header.
    """

    def __init__(self) -> None:
        self.more: More = lambda: False
        self.size = 0
        """The number of bytes that have arrived."""
        self._pieces: deque[bytes] = deque()

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body to its end.

        :raises connmgr.errors.ConnmgrError: it is incomplete or malformed.
        """
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if not self.more():
                return

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        if data:
            self.size += len(data)
            self._pieces.append(data)

    def getfile(self) -> Inflow:
        """Return the ``wsgi.input`` of the application."""
        return self

    def close(self) -> None:
        """Drop unread bytes."""
        self._pieces.clear()
