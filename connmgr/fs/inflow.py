"""A request body that is used while it arrives."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator

from connmgr.errors import ConnmgrError, InvalidRequest

More = Callable[[], bool]
"""Receives more of a body; returns False when it is complete."""


class Inflow:
    """The bytes of one body: the parser of its request appends them, and one thread takes them, once.

    Bytes are received only on demand, so a client that sends faster must wait. The server sets ``more`` when a thread
    begins to answer. Until then, and always if the whole request came at once, there are only the bytes that came with
    the header.
    """

    def __init__(self) -> None:
        self.more: More = lambda: False
        self.size = 0
        """The number of bytes that have arrived."""

        self.until: int | None = None
        """A descriptor that is readable when nobody wants more; with it, the sender may pause as long as it likes."""

        self._pieces: deque[bytes] = deque()
        self._line: bytes | None = None

    @property
    def has_line(self) -> bool:
        """Whether its first line was taken, so that the rest is not kept."""
        return self._line is not None

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

    def first_line(self, most: int) -> bytes:
        """Return the first line of the body without its newline; the iteration then begins behind it.

        Called again, as for a request that waited for an approval, it returns the same line.

        :raises InvalidRequest: the body has no newline within ``most`` bytes; otherwise as the iteration.
        """
        if self._line is None:
            held = bytearray()
            for piece in self:
                held += piece
                if b"\n" in piece or len(held) > most:
                    break
            line, newline, rest = bytes(held).partition(b"\n")
            if not newline or len(line) > most:
                raise InvalidRequest(f"The body does not begin with a line of JSON of at most {most} bytes.")
            self._line = line
            if rest:
                self._pieces.appendleft(rest)
        return self._line

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


class ArrivingInput:
    """The rest of a body as the input of a command (:class:`connmgr.engine.stdin_pipe.Input`).

    One thread iterates, and any may stop it. It may pause as long as its sender likes.
    """

    def __init__(self, body: Inflow) -> None:
        self.failed = False
        self.size = 0
        """Bytes that the far side has accepted."""

        self._body = body
        self._stopped = False
        self._lock = threading.Lock()
        self._wake, self._waker = os.pipe()
        body.until = self._wake

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._body:
                yield piece
                if self._stopped:
                    return
        except ConnmgrError:
            # The client has left, or what it sent is not a body. The command must not take a part for the whole.
            self.failed = not self._stopped

    def passed(self, size: int) -> None:
        self.size += size

    def stop(self) -> None:
        with self._lock:
            if not self._stopped:
                self._stopped = True
                os.close(self._waker)

    def close(self) -> None:
        """Release its descriptors, when nobody iterates any more."""
        self.stop()
        self._body.until = None
        os.close(self._wake)
