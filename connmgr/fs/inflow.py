"""A request body that is used while it arrives, instead of being kept first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

More = Callable[[], bool]
"""Receives more of a body; returns False where it is whole."""


class Inflow:
    """The bytes of one body: the parser of its request appends them, and who answers takes them, once.

    Nothing is received but what is asked for: a client that sends faster waits. The server sets ``more`` when somebody
    begins to answer; until then, or for ever where the request came at once, there are the bytes that came with the
    header.
    """

    def __init__(self) -> None:
        self.more: More = lambda: False
        self.size = 0
        """How many bytes have come."""
        self._pieces: deque[bytes] = deque()

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body to its end.

        :raises connmgr.errors.ConnmgrError: it does not come to its end, or is no body.
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
        """Drop what nobody has taken."""
        self._pieces.clear()
