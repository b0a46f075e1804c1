"""The characters of a screen: rows of cells, and the ways in which a terminal moves them."""

from __future__ import annotations

from connmgr.terminals.style import PLAIN, Style

STUB = ""
"""The content of a wide character's second cell."""

MAX_COMBINED = 8
"""Most characters in one cell, combining ones included; further ones are dropped."""


class Row:
    """One line: a character and its look for each column."""

    __slots__ = ("styles", "text", "wide")

    def __init__(self, columns: int, style: Style = PLAIN, fill: str = " ") -> None:
        self.text = [fill] * columns
        self.styles = [style] * columns
        self.wide = False
        """Whether there may be wide characters."""

    def write(self, x: int, text: str, style: Style) -> None:
        """Put narrow characters from column ``x`` on; they fit."""
        end = x + len(text)
        if self.wide:
            self.part(x)
            self.part(end)
        self.text[x:end] = text
        self.styles[x:end] = [style] * len(text)

    def write_wide(self, x: int, character: str, style: Style) -> None:
        """Put a character of two columns at ``x``; it fits."""
        self.part(x)
        self.part(x + 2)
        self.wide = True
        self.text[x : x + 2] = [character, STUB]
        self.styles[x : x + 2] = [style, style]

    def combine(self, x: int, mark: str) -> None:
        """Add a mark to the character at column ``x``."""
        if self.text[x] == STUB and x:
            x -= 1
        if len(self.text[x]) < MAX_COMBINED:
            self.text[x] += mark

    def erase(self, start: int, stop: int, style: Style) -> None:
        """Blank the columns from ``start`` to before ``stop``."""
        self.part(start)
        self.part(stop)
        self.text[start:stop] = [" "] * (stop - start)
        self.styles[start:stop] = [style] * (stop - start)

    def insert(self, x: int, count: int, style: Style) -> None:
        """Shift the characters from ``x`` on ``count`` columns to the right; those beyond the row are lost."""
        columns = len(self.text)
        count = min(count, columns - x)
        self.part(x)
        self.part(columns - count)
        self.text[x:] = [" "] * count + self.text[x : columns - count]
        self.styles[x:] = [style] * count + self.styles[x : columns - count]

    def delete(self, x: int, count: int, style: Style) -> None:
        """Remove ``count`` columns at ``x``; later ones move to the left."""
        columns = len(self.text)
        count = min(count, columns - x)
        self.part(x)
        self.part(x + count)
        self.text[x:] = self.text[x + count :] + [" "] * count
        self.styles[x:] = self.styles[x + count :] + [style] * count

    def part(self, x: int) -> None:
        """Blank a wide character whose second half is column ``x``, before one half is changed."""
        if x < len(self.text) and self.text[x] == STUB:
            self.text[x] = " "
            if x:
                self.text[x - 1] = " "

    def resize(self, columns: int) -> None:
        """Cut the row, or lengthen it with blanks."""
        more = columns - len(self.text)
        if more < 0:
            self.part(columns)
            del self.text[columns:], self.styles[columns:]
        else:
            self.text += [" "] * more
            self.styles += [PLAIN] * more


class Grid:
    """The rows of a screen, all of one length."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = [Row(columns) for _ in range(rows)]

    @property
    def lines(self) -> list[str]:
        """The text of each row without the blanks at its end."""
        return ["".join(row.text).rstrip() for row in self.rows]

    def erase_rows(self, start: int, stop: int, style: Style) -> None:
        """Blank the rows from ``start`` to before ``stop``."""
        self.rows[start:stop] = [Row(self.columns, style) for _ in range(stop - start)]

    def scroll_up(self, top: int, bottom: int, count: int, style: Style) -> None:
        """Remove ``count`` rows at ``top``; blank ones follow the last of the region, ``bottom``."""
        if count == 1:
            del self.rows[top]
            self.rows.insert(bottom, Row(self.columns, style))
            return
        count = min(count, bottom + 1 - top)
        blank = [Row(self.columns, style) for _ in range(count)]
        self.rows[top : bottom + 1] = self.rows[top + count : bottom + 1] + blank

    def scroll_down(self, top: int, bottom: int, count: int, style: Style) -> None:
        """Insert ``count`` blank rows at ``top``; as many are lost at the end of the region, ``bottom``."""
        count = min(count, bottom + 1 - top)
        blank = [Row(self.columns, style) for _ in range(count)]
        self.rows[top : bottom + 1] = blank + self.rows[top : bottom + 1 - count]

    def fill(self, character: str) -> None:
        """Put ``character`` everywhere."""
        self.rows = [Row(self.columns, PLAIN, character) for _ in self.rows]

    def resize(self, columns: int, rows: int, cursor: int) -> int:
        """Change the size, keeping row ``cursor``, and return by how many rows the remaining ones have moved up."""
        moved = max(0, min(cursor, len(self.rows) - 1) + 1 - rows)
        self.rows = self.rows[moved : moved + rows]
        for row in self.rows:
            row.resize(columns)
        self.rows += [Row(columns) for _ in range(rows - len(self.rows))]
        self.columns = columns
        return moved
