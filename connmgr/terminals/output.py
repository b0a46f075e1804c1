"""A terminal's output: its last bytes, and the screen, which is updated on demand.

Drawing costs more than receiving, so output is only stored until somebody looks at the screen. Lines that have scrolled
off by then are never drawn. Of output beyond a backlog only the sequences that set modes are read.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from connmgr.computing import give_way, waiting
from connmgr.terminals.emulator.screen import Screen, SkippedOutput, length_of_lines

KEPT_BYTES = 2 << 20

BACKLOG_BYTES = 256 << 10
"""Bytes by which a screen may lag behind; beyond that, the older half is skipped, except for the modes that it sets."""

OVERDUE_BYTES = BACKLOG_BYTES // 2
LOOK_SECONDS = 0.25
"""Longest processor time of one update; if that is not enough, the screen is incomplete."""

_PIECE_BYTES = 4096
_PIECE_COST = 1 << 22
"""Most bytes of a piece times the screen's characters: a few bytes may cost as much as drawing all characters."""

_RESIZES = 64
_SEAM = re.compile(rb"[\n\x1b]")


class Ring:
    """Keeps the last ``kept`` appended bytes. Not safe to use from several threads.

    Offsets count the bytes from the first one ever appended. The memory grows up to ``kept``, and is then overwritten
    in turn: the byte of an offset is at the remainder of its division by ``kept``.
    """

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._capacity = kept
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
            at = self.end % self._capacity
            piece = data[: self._capacity - at]
            self._data[at : at + len(piece)] = piece
            self.end += len(piece)
            data = data[len(piece) :]

    def read(self, offset: int, most: int) -> bytes:
        """Return up to ``most`` bytes from ``offset`` on, which is neither before the start nor after the end."""
        first, size = offset % self._capacity, min(most, self.end - offset)
        # Released at once: a bytearray with a view cannot grow (BufferError).
        with memoryview(self._data) as data:
            return b"".join((data[first : first + size], data[: max(0, first + size - self._capacity)]))


class _Resize(NamedTuple):
    offset: int
    columns: int
    rows: int


class TerminalOutput:
    """A terminal's output and screen. Safe to use from several threads; appending never waits for an update."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        # Held only briefly.
        self._lock = threading.Lock()
        self._ring = Ring()
        self._followed = 0
        self._skipped: SkippedOutput | None = None
        self._resizes: deque[_Resize] = deque(maxlen=_RESIZES)
        # Held while the screen is in use.
        self._looking = threading.Lock()
        self._screen = Screen(columns, rows)

    @property
    def start(self) -> int:
        """The offset of the first byte that is still there."""
        return self._ring.start

    @property
    def end(self) -> int:
        """The offset of the next output."""
        return self._ring.end

    @property
    def is_overdue(self) -> bool:
        """Whether there was so much output since the last look that some of it will soon be skipped."""
        return self._ring.end - self._followed > OVERDUE_BYTES

    def append(self, data: bytes) -> None:
        """Add output."""
        with self._lock:
            self._ring.append(data)
            behind = self._ring.end - self._followed
            if behind > BACKLOG_BYTES:
                self._skip(behind - OVERDUE_BYTES)

    def read(self, offset: int, most: int) -> tuple[int, bytes]:
        """Return up to ``most`` bytes from ``offset`` on, or from the first byte that is still there, and their
        offset."""
        with self._lock:
            first = min(max(offset, self._ring.start), self._ring.end)
            return first, self._ring.read(first, most)

    def resize(self, columns: int, rows: int) -> None:
        """Show further output on a screen of another size."""
        with self._lock:
            self.columns, self.rows = columns, rows
            if self._resizes and self._resizes[-1].offset == self._ring.end:
                self._resizes.pop()
            self._resizes.append(_Resize(self._ring.end, columns, rows))

    @contextmanager
    def look(self, seconds: float = LOOK_SECONDS) -> Iterator[tuple[Screen, int]]:
        """Update the screen for at most ``seconds`` of work; yield the screen and its offset in the output."""
        if not self._looking.acquire(blocking=False):
            # Whoever looks gives way to the owner's requests, and so must not wait for one that waits here.
            with waiting():
                self._looking.acquire()
        try:
            offset = self._follow(time.thread_time() + seconds)
            yield self._screen, offset
        finally:
            self._looking.release()

    def _follow(self, until: float) -> int:
        screen = self._screen
        # The offset from which on lines that scroll off are searched for again.
        searched = 0
        while True:
            give_way()
            with self._lock:
                skipped, self._skipped = self._skipped, None
                offset = self._followed
                resize = self._resizes[0] if self._resizes else None
                if resize is not None and resize.offset <= offset:
                    self._resizes.popleft()
                    searches, data = False, b""
                else:
                    searches = offset >= searched and not screen.undecoded
                    piece = min(_PIECE_BYTES, _PIECE_COST // (screen.columns * screen.rows))
                    most = BACKLOG_BYTES if searches else piece
                    data = self._ring.read(offset, most if resize is None else min(most, resize.offset - offset))
                    resize = None
                    if not searches:
                        self._followed += len(data)
            if skipped is not None:
                skipped.apply(screen)
            if resize is not None:
                screen.resize(resize.columns, resize.rows)
            elif not data:
                return offset
            elif searches:
                length = length_of_lines(data)
                searched = offset + max(_PIECE_BYTES, length)
                self._go_on(offset, screen.scroll_past(data[:length]))
                continue
            else:
                screen.take(data)
                offset += len(data)
            if time.thread_time() > until:
                return offset

    def _go_on(self, offset: int, count: int) -> None:
        """Continue ``count`` bytes after ``offset``, unless output from there on was skipped meanwhile."""
        with self._lock:
            if self._followed == offset:
                self._followed += count

    def _skip(self, count: int) -> None:
        """Skip ``count`` bytes, and a few more, up to the beginning of a line or a sequence."""
        piece = self._ring.read(self._followed, count + _PIECE_BYTES)
        # Not within an escape sequence or a character of several bytes: the screen would show their second half.
        seam = _SEAM.search(piece, count)
        length = seam.start() if seam else count
        self._skipped = self._skipped or SkippedOutput()
        self._skipped.scan(piece[:length])
        self._followed += length
