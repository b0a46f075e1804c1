"""The end of a stream of bytes, by offset."""

from __future__ import annotations

KEPT_BYTES = 2 << 20


class Ring:
    """Keeps the last ``kept`` appended bytes. Not safe to use from several threads.

    Offsets count the bytes from the first one ever appended. The memory grows up to ``kept``, and is then overwritten
    in turn: the byte of an offset is at the remainder of its division by ``kept``.
    """

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._data = bytearray()
        self.end = 0
        """The offset of the next byte that will be appended."""

    @property
    def start(self) -> int:
        """The offset of the first byte that is still there."""
        return self.end - len(self._data)

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        while data:
            at = self.end % self._kept
            piece = data[: self._kept - at]
            self._data[at : at + len(piece)] = piece
            self.end += len(piece)
            data = data[len(piece) :]

    def read(self, offset: int, most: int) -> bytes:
        """Return up to ``most`` bytes from ``offset`` on, which is neither before the start nor after the end."""
        first, size = offset % self._kept, min(most, self.end - offset)
        with memoryview(self._data) as data:
            return b"".join((data[first : first + size], data[: max(0, first + size - self._kept)]))
