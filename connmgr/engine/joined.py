"""Joins the output of a running command that comes in a burst, so that its reader gets fewer messages."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator

JOIN_SECONDS = 0.02
"""Longest time that output waits for more output to be joined with."""

JOINED_BYTES = 64 << 10
"""Output of this size is sent at once, without waiting for more."""

PIECE_BYTES = 32 << 10
"""Most bytes of a piece."""

Piece = tuple[bytes, bytes]
"""Output of stdout or of stderr; the other one is empty."""


class Joined:
    """Output on its way to a reader that takes piece after piece.

    The first piece after a pause is not delayed. Output of one stream is not joined across output of the other, so that
    the reader sees the order in which they were read.
    """

    def __init__(self) -> None:
        # Stream numbers, 0 for stdout, each with the output that came before output of the other stream.
        self._runs: deque[tuple[int, bytearray]] = deque()
        self._bytes = 0
        self._leaving = False
        # The time of time.monotonic until which output waits for more.
        self._joining_until = -math.inf

    @property
    def due(self) -> float:
        """The time of ``time.monotonic`` when the next piece must be sent; infinity if nothing is held."""
        if not self._runs:
            return math.inf
        return -math.inf if self._leaving else self._joining_until

    def add(self, *streams: bytes) -> None:
        """Add output, possibly none, of stdout and of stderr."""
        for number, data in enumerate(streams):
            if not data:
                continue
            if not self._runs or self._runs[-1][0] != number:
                self._runs.append((number, bytearray()))
            self._runs[-1][1].extend(data)
            self._bytes += len(data)

    def next(self) -> Piece | None:
        """Return the piece to send now, or None if there is none or it still waits for more."""
        if not self._runs:
            return None
        now = time.monotonic()
        self._leaving = self._leaving or self._bytes >= JOINED_BYTES or now >= self._joining_until
        if not self._leaving:
            return None
        piece = self._first()
        if not self._runs:
            self._leaving, self._joining_until = False, now + JOIN_SECONDS
        return piece

    def rest(self) -> Iterator[Piece]:
        """Yield all held output, at the end."""
        while self._runs:
            yield self._first()

    def drop(self) -> None:
        """Drop all held output."""
        self._runs.clear()
        self._bytes = 0

    def _first(self) -> Piece:
        number, held = self._runs[0]
        piece = bytes(held[:PIECE_BYTES])
        del held[:PIECE_BYTES]
        if not held:
            self._runs.popleft()
        self._bytes -= len(piece)
        return (piece, b"") if number == 0 else (b"", piece)
