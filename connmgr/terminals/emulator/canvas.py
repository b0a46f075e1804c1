"""A terminal's cursor, its modes, and its actions on the characters at the cursor."""

from __future__ import annotations

import re
from typing import NamedTuple

from wcwidth import wcwidth

from connmgr.terminals.emulator.cells import PLAIN, Grid, Style

REVERSED = 5
ORIGIN = 6
AUTOWRAP = 7
CURSOR = 25

ALTERNATE = frozenset({47, 1047, 1049})
"""Modes that switch to the alternate screen, on which editors and pagers draw without touching the user's lines; 1049
saves the cursor before, and restores it afterwards."""

INITIAL = frozenset({AUTOWRAP, CURSOR})

_MOUSE = frozenset({9, 1000, 1002, 1003})
_MOUSE_FORMAT = frozenset({1005, 1006, 1015, 1016})
_REPLACES_NONE: frozenset[int] = frozenset()

FOLLOWED_MODES: dict[int, frozenset[int]] = {
    **{number: _MOUSE - {number} for number in _MOUSE},
    **{number: _MOUSE_FORMAT - {number} for number in _MOUSE_FORMAT},
    # Cursor keys, reverse video, origin, wrapping, visible cursor, keypad, focus, alternate scroll, bracketed paste.
    **dict.fromkeys((1, REVERSED, ORIGIN, AUTOWRAP, CURSOR, 66, 1004, 1007, 2004), _REPLACES_NONE),
}
"""The private modes (DECSET) that the screen remembers and an attaching client gets, each with those it replaces."""

TAB_COLUMNS = 8

# One match for the whole text, because looking up each character's width takes longer than drawing it.
_NARROW = re.compile("[ -~\xa1-\xac\xae-\u02ff\u0400-\u0482\u2500-\u25fc]*")
_LINE_DRAWING = dict(zip(range(0x60, 0x7F), "◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·", strict=True))


class SavedCursor(NamedTuple):
    """The state that DECSC saves."""

    x: int = 0
    y: int = 0
    style: Style = PLAIN
    origin: bool = False
    charsets: tuple[str, str] = ("B", "B")
    shifted: bool = False


class Canvas:
    """The shown characters, the cursor, and the state that decides where and how the next character is put.

    ``x`` equals the number of columns if the next character begins a new line: xterm's cursor stays on the last column
    after a character there, and wraps only before the next one, so that a full line needs no scroll.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.reset()

    def reset(self) -> None:
        """Reset everything except the size."""
        self.grid = Grid(self.columns, self.rows)
        self.x = self.y = 0
        self.tabs = set(range(0, self.columns, TAB_COLUMNS))
        self.modes = set(INITIAL)
        self.soft_reset()

    def soft_reset(self) -> None:
        """Reset the modes that could disturb another program; the characters and the cursor's place stay (DECSTR)."""
        self.style = PLAIN
        self.top, self.bottom = 0, self.rows - 1
        self.modes = (self.modes | INITIAL) - {ORIGIN, 1}
        self.insert_mode = self.newline_mode = False
        self.charsets = ["B", "B"]
        self.shifted = False
        self.saved = SavedCursor()

    @property
    def column(self) -> int:
        """The cursor's column."""
        # After the last column was written, x is one beyond it: the next character wraps first, but until then the
        # cursor is shown in that column (xterm's pending wrap).
        return min(self.x, self.columns - 1)

    def put(self, text: str) -> None:
        """Write characters at the cursor."""
        if self.charsets[self.shifted] == "0":
            text = text.translate(_LINE_DRAWING)
        position = 0
        while position < len(text):
            narrow = _NARROW.match(text, position)
            end = narrow.end() if narrow else position
            if end > position:
                self._put_narrow(text[position:end])
                position = end
            else:
                self._put_any(text[position])
                position += 1

    def _put_narrow(self, text: str) -> None:
        wrap = AUTOWRAP in self.modes
        position = 0
        while position < len(text):
            if self.x >= self.columns:
                self._wrap()
            piece = text[position : position + self.columns - self.x]
            row = self.grid.rows[self.y]
            if self.insert_mode:
                row.insert(self.x, len(piece), self.style.erased)
            row.write(self.x, piece, self.style)
            self.x += len(piece)
            position += len(piece)
            if self.x >= self.columns and not wrap:
                # Each further character overwrites the last column.
                row.write(self.columns - 1, text[-1], self.style)
                self.x = self.columns - 1
                return

    def _put_any(self, character: str) -> None:
        width = wcwidth(character)
        if width == 1:
            self._put_narrow(character)
        elif width == 2:
            self._put_wide(character)
        elif width == 0 and self.x:
            self.grid.rows[self.y].combine(self.x - 1, character)

    def _put_wide(self, character: str) -> None:
        # A wide character is never cut in two: it goes to the next line, or without wrapping is not drawn.
        if self.x > self.columns - 2:
            if AUTOWRAP not in self.modes or self.columns < 2:
                return
            self._wrap()
        row = self.grid.rows[self.y]
        if self.insert_mode:
            row.insert(self.x, 2, self.style.erased)
        row.write_wide(self.x, character, self.style)
        self.x += 2
        if self.x >= self.columns and AUTOWRAP not in self.modes:
            self.x = self.columns - 1

    def _wrap(self) -> None:
        if AUTOWRAP in self.modes:
            self.index()
            self.x = 0
        else:
            self.x = self.columns - 1

    def index(self) -> None:
        """Go to the next line, or scroll at the last one."""
        self.x = self.column
        if self.y == self.bottom:
            self.grid.scroll_up(self.top, self.bottom, 1, self.style.erased)
        elif self.y < self.rows - 1:
            self.y += 1

    def reverse_index(self) -> None:
        """Go to the previous line, or scroll at the first one."""
        self.x = self.column
        if self.y == self.top:
            self.grid.scroll_down(self.top, self.bottom, 1, self.style.erased)
        elif self.y > 0:
            self.y -= 1

    def line_feed(self) -> None:
        """Go to the next line, and to its beginning in newline mode."""
        self.index()
        if self.newline_mode:
            self.x = 0

    def next_line(self) -> None:
        """Go to the beginning of the next line."""
        self.index()
        self.x = 0

    def up(self, count: int) -> None:
        """Go up, within the region if the cursor is there."""
        least = self.top if self.y >= self.top else 0
        self.x, self.y = self.column, max(least, self.y - count)

    def down(self, count: int) -> None:
        """Go down, within the region if the cursor is there."""
        most = self.bottom if self.y <= self.bottom else self.rows - 1
        self.x, self.y = self.column, min(most, self.y + count)

    def right(self, count: int) -> None:
        self.x = min(self.columns - 1, self.x + count)

    def left(self, count: int) -> None:
        self.x = max(0, self.column - count)

    def go(self, x: int, y: int) -> None:
        """Place the cursor; rows are counted from the region's first one in origin mode."""
        first, last = (self.top, self.bottom) if ORIGIN in self.modes else (0, self.rows - 1)
        self.x, self.y = max(0, min(self.columns - 1, x)), min(last, first + y)

    def tab(self, count: int) -> None:
        """Go to a later tab stop, or to the last column."""
        later = sorted(tab for tab in self.tabs if tab > self.x)[:count]
        self.x = later[-1] if len(later) == count else self.columns - 1

    def tab_back(self, count: int) -> None:
        """Go to an earlier tab stop, or to the first column."""
        before = sorted((tab for tab in self.tabs if tab < self.x), reverse=True)[:count]
        self.x = before[-1] if len(before) == count else 0

    def clear_tabs(self, kind: int) -> None:
        """Remove the tab stop at the cursor (0), or all (3)."""
        if kind == 3:
            self.tabs.clear()
        elif kind == 0:
            self.tabs.discard(self.column)

    def save_cursor(self) -> None:
        charsets = self.charsets[0], self.charsets[1]
        self.saved = SavedCursor(self.column, self.y, self.style, ORIGIN in self.modes, charsets, self.shifted)

    def restore_cursor(self) -> None:
        self.x, self.y, self.style, origin, charsets, self.shifted = self.saved
        self.charsets = list(charsets)
        self.modes = self.modes | {ORIGIN} if origin else self.modes - {ORIGIN}

    def insert_characters(self, count: int) -> None:
        self.x = self.column
        self.grid.rows[self.y].insert(self.x, count, self.style.erased)

    def delete_characters(self, count: int) -> None:
        self.x = self.column
        self.grid.rows[self.y].delete(self.x, count, self.style.erased)

    def erase_characters(self, count: int) -> None:
        self.x = self.column
        self.grid.rows[self.y].erase(self.x, min(self.columns, self.x + count), self.style.erased)

    def erase_line(self, kind: int) -> None:
        """Blank the line from the cursor on (0), up to it (1), or all of it (2)."""
        self.x = self.column
        spans = {0: (self.x, self.columns), 1: (0, self.x + 1), 2: (0, self.columns)}
        start, end = spans.get(kind, (0, 0))
        self.grid.rows[self.y].erase(start, end, self.style.erased)

    def erase_display(self, kind: int) -> None:
        """Blank the screen from the cursor on (0), up to it (1), or all of it (2)."""
        if kind in (0, 1):
            self.erase_line(kind)
        start, end = {0: (self.y + 1, self.rows), 1: (0, self.y), 2: (0, self.rows)}.get(kind, (0, 0))
        self.grid.erase_rows(start, end, self.style.erased)

    def insert_lines(self, count: int) -> None:
        if self.top <= self.y <= self.bottom:
            self.grid.scroll_down(self.y, self.bottom, count, self.style.erased)
            self.x = 0

    def delete_lines(self, count: int) -> None:
        if self.top <= self.y <= self.bottom:
            self.grid.scroll_up(self.y, self.bottom, count, self.style.erased)
            self.x = 0

    def scroll(self, count: int) -> None:
        """Move the region up, or down by a negative ``count``."""
        move = self.grid.scroll_up if count > 0 else self.grid.scroll_down
        move(self.top, self.bottom, abs(count), self.style.erased)

    def align(self) -> None:
        """Fill the screen with E, as DECALN does."""
        self.top, self.bottom = 0, self.rows - 1
        self.x = self.y = 0
        self.grid.fill("E")

    def set_margins(self, top: int, bottom: int) -> None:
        """Let only the lines from ``top`` to ``bottom`` scroll, counted from 0."""
        # A region of one line or none is ignored, as by a VT100.
        if top < bottom:
            self.top, self.bottom = top, bottom
            self.go(0, 0)
