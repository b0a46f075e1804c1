"""The end of a stream of bytes, by offset."""

from __future__ import annotations

KEPT_BYTES = 2 << 20
_TRIM_BYTES = 256 << 10


class Ring:
    """Keeps at least the last ``kept`` appended bytes. Not safe to use from several threads.

    Offsets count the bytes from the first one ever appended.
    """

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._data = bytearray()
        self.start = 0
        """The offset of the first byte that is still there."""

    @property
    def end(self) -> int:
        """The offset of the next byte that will be appended."""
        return self.start + len(self._data)

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        self._data += data
        if len(self._data) > self._kept + _TRIM_BYTES:
            dropped = len(self._data) - self._kept
            del self._data[:dropped]
            self.start += dropped

    def read(self, offset: int, most: int) -> bytes:
        """Return up to ``most`` bytes from ``offset`` on, which is neither before the start nor after the end."""
        first = offset - self.start
        return bytes(self._data[first : first + most])
