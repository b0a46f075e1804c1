"""A terminal's output: its last bytes, and the screen, which is updated on demand."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from connmgr.terminals.ring import Ring
from connmgr.terminals.screen import Screen
from connmgr.terminals.skipped import Skipped

BACKLOG_BYTES = 256 << 10
"""Bytes by which a screen may lag behind; beyond that, the older half is skipped, except for the modes that it sets."""

OVERDUE_BYTES = BACKLOG_BYTES // 2
LOOK_SECONDS = 0.25
"""Longest processor time of a look; a screen that needs more is yielded incomplete."""

_PIECE_BYTES = 4096
_RESIZES = 64
_SEAM = re.compile(rb"[\n\x1b]")


class _Resize(NamedTuple):
    offset: int
    columns: int
    rows: int


class Output:
    """A terminal's output and screen. Safe to use from several threads; appending never waits for a look."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        # Held only briefly.
        self._lock = threading.Lock()
        self._ring = Ring()
        self._followed = 0
        self._skipped: Skipped | None = None
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
        with self._looking:
            offset = self._follow(time.thread_time() + seconds)
            yield self._screen, offset

    def _follow(self, until: float) -> int:
        while True:
            with self._lock:
                skipped, self._skipped = self._skipped, None
                offset = self._followed
                resize = self._resizes[0] if self._resizes else None
                if resize is not None and resize.offset <= offset:
                    self._resizes.popleft()
                    piece = b""
                else:
                    most = _PIECE_BYTES if resize is None else min(_PIECE_BYTES, resize.offset - offset)
                    piece = self._ring.read(offset, most)
                    self._followed += len(piece)
                    resize = None
            if skipped is not None:
                skipped.apply(self._screen)
            if resize is not None:
                self._screen.resize(resize.columns, resize.rows)
            elif not piece:
                return offset
            else:
                self._screen.take(piece)
                if time.thread_time() > until:
                    return offset + len(piece)

    def _skip(self, count: int) -> None:
        """Skip ``count`` bytes, and a few more, up to the beginning of a line or a sequence."""
        piece = self._ring.read(self._followed, count + _PIECE_BYTES)
        seam = _SEAM.search(piece, count)
        length = seam.start() if seam else count
        self._skipped = self._skipped or Skipped()
        self._skipped.scan(piece[:length])
        self._followed += length
