"""What a terminal has printed: its last bytes, and the screen that all of them make, which is followed on demand."""

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
"""Output that a screen may be behind; beyond that the older half is skipped but for the modes that it sets."""

OVERDUE_BYTES = BACKLOG_BYTES // 2
LOOK_SECONDS = 0.25
"""Processor time for which a look follows the output; a screen that needs longer is shown as it was then."""

_PIECE_BYTES = 4096
_RESIZES = 64
_SEAM = re.compile(rb"[\n\x1b]")


class _Resize(NamedTuple):
    offset: int
    columns: int
    rows: int


class Output:
    """A terminal's output and screen. Safe to use from several threads; who appends never waits for who looks."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        # Held for moments.
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
        """The offset at which the next output will be."""
        return self._ring.end

    @property
    def is_overdue(self) -> bool:
        """Whether so much came since somebody looked that some of it will be skipped soon."""
        return self._ring.end - self._followed > OVERDUE_BYTES

    def append(self, data: bytes) -> None:
        """Take more output."""
        with self._lock:
            self._ring.append(data)
            behind = self._ring.end - self._followed
            if behind > BACKLOG_BYTES:
                self._skip(behind - OVERDUE_BYTES)

    def read(self, offset: int, most: int) -> tuple[int, bytes]:
        """Return up to ``most`` bytes from ``offset`` on, or from the first byte that is left, and their offset."""
        with self._lock:
            first = min(max(offset, self._ring.start), self._ring.end)
            return first, self._ring.read(first, most)

    def resize(self, columns: int, rows: int) -> None:
        """Have what comes from now on shown on a screen of another size."""
        with self._lock:
            self.columns, self.rows = columns, rows
            if self._resizes and self._resizes[-1].offset == self._ring.end:
                self._resizes.pop()
            self._resizes.append(_Resize(self._ring.end, columns, rows))

    @contextmanager
    def look(self, seconds: float = LOOK_SECONDS) -> Iterator[tuple[Screen, int]]:
        """Follow the output for ``seconds`` of work at most; lend the screen, and the offset that it has come to."""
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
        """Pass over ``count`` bytes, and a few more, to where a line or a sequence begins."""
        piece = self._ring.read(self._followed, count + _PIECE_BYTES)
        seam = _SEAM.search(piece, count)
        length = seam.start() if seam else count
        self._skipped = self._skipped or Skipped()
        self._skipped.scan(piece[:length])
        self._followed += length
