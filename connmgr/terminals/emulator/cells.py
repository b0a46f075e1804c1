"""What a terminal's screen consists of: rows of cells, each with a character and its style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

DEFAULT_COLOUR = -1
TRUE_COLOUR = 1 << 24
"""Added to 24-bit colours; smaller numbers are indices of the 256-colour palette."""

BOLD, DIM, ITALIC, UNDERLINE, BLINK, REVERSE, HIDDEN, STRIKE = (1 << bit for bit in range(8))

_SET = {1: BOLD, 2: DIM, 3: ITALIC, 4: UNDERLINE, 5: BLINK, 6: BLINK, 7: REVERSE, 8: HIDDEN, 9: STRIKE, 21: UNDERLINE}
_UNSET = {22: BOLD | DIM, 23: ITALIC, 24: UNDERLINE, 25: BLINK, 27: REVERSE, 28: HIDDEN, 29: STRIKE}
_CODES = {BOLD: 1, DIM: 2, ITALIC: 3, UNDERLINE: 4, BLINK: 5, REVERSE: 7, HIDDEN: 8, STRIKE: 9}

_COLOURS = (
    {39: DEFAULT_COLOUR}
    | {30 + colour: colour for colour in range(8)}
    | {82 + colour: colour for colour in range(8, 16)}
)


class Style(NamedTuple):
    """A foreground, a background and attributes."""

    foreground: int = DEFAULT_COLOUR
    background: int = DEFAULT_COLOUR
    attributes: int = 0

    @property
    def erased(self) -> Style:
        """The style of a cell that is erased while this style is set."""
        return PLAIN if self.background == DEFAULT_COLOUR else Style(background=self.background)

    @property
    def sequence(self) -> str:
        """The control sequence that sets exactly this style, whatever was set before."""
        codes = ["0", *(str(code) for bit, code in _CODES.items() if self.attributes & bit)]
        codes += _colour(self.foreground, 30, 90)
        codes += _colour(self.background, 40, 100)
        return "\x1b[m" if self == PLAIN else f"\x1b[{';'.join(codes)}m"


PLAIN = Style()


def _colour(colour: int, base: int, bright: int) -> list[str]:
    if colour == DEFAULT_COLOUR:
        return []
    if colour >= TRUE_COLOUR:
        return [str(base + 8), "2", *(str(colour >> shift & 255) for shift in (16, 8, 0))]
    if colour >= 16:
        return [str(base + 8), "5", str(colour)]
    return [str(base + colour if colour < 8 else bright + colour - 8)]


def apply_sgr(style: Style, parameters: Sequence[Sequence[int]]) -> Style:
    """Return ``style`` after SGR with ``parameters``, each with its subparameters; no parameters mean 0."""
    foreground, background, attributes = style
    rest = iter(parameters or [[0]])
    for code, *sub in rest:
        if code == 0:
            foreground, background, attributes = PLAIN
        elif code == 4 and sub[:1] == [0]:
            attributes &= ~UNDERLINE
        elif code in _SET:
            attributes |= _SET[code]
        elif code in _UNSET:
            attributes &= ~_UNSET[code]
        elif code in (38, 48, 58):
            colour = _extended(sub, rest)
            if colour is not None and code != 58:
                foreground, background = (colour, background) if code == 38 else (foreground, colour)
        elif code in _COLOURS:
            foreground = _COLOURS[code]
        elif code - 10 in _COLOURS:
            background = _COLOURS[code - 10]
    return Style(foreground, background, attributes)


def _extended(sub: Sequence[int], rest: Iterator[Sequence[int]]) -> int | None:
    """Return the colour of 38, 48 or 58, given by its subparameters or by the following parameters."""
    if sub:
        kind, values = sub[0], list(sub[1:])
        # ITU-T T.416 has a colour space before the three values, xterm's older form has none.
        values = values[-3:] if kind == 2 else values[:1]
    else:
        kind = next(rest, [0])[0]
        # Semicolons in place of colons: the values are the next parameters, and are used up even if they make no
        # colour.
        values = [next(rest, [-1])[0] for _ in range({2: 3, 5: 1}.get(kind, 0))]
    if len(values) != {2: 3, 5: 1}.get(kind) or not all(0 <= value <= 255 for value in values):
        return None
    return values[0] if kind == 5 else TRUE_COLOUR | values[0] << 16 | values[1] << 8 | values[2]


SPACER = ""
"""The content of the second cell of a wide character, as of 漢; joining the cells then yields the row's text."""

MAX_COMBINED = 8
"""Most characters in one cell, combining ones included; further ones are dropped."""


class Row:
    """One line: a character and its look for each column."""

    __slots__ = ("styles", "text", "wide")

    def __init__(self, columns: int, style: Style = PLAIN, fill: str = " ") -> None:
        self.text = [fill] * columns
        self.styles = [style] * columns
        self.wide = False
        """Whether there may be wide characters; most rows have none, and need no look at the neighbours of a change."""

    @property
    def shown(self) -> str:
        """Its text without the blanks at its end."""
        return "".join(self.text).rstrip()

    def write(self, x: int, text: str, style: Style) -> None:
        """Put narrow characters from column ``x`` on; they fit."""
        end = x + len(text)
        if self.wide:
            self.split_wide(x)
            self.split_wide(end)
        self.text[x:end] = text
        self.styles[x:end] = [style] * len(text)

    def write_wide(self, x: int, character: str, style: Style) -> None:
        """Put a character of two columns at ``x``; it fits."""
        self.split_wide(x)
        self.split_wide(x + 2)
        self.wide = True
        self.text[x : x + 2] = [character, SPACER]
        self.styles[x : x + 2] = [style, style]

    def combine(self, x: int, mark: str) -> None:
        """Add a mark to the character at column ``x``."""
        if self.text[x] == SPACER and x:
            x -= 1
        if len(self.text[x]) < MAX_COMBINED:
            self.text[x] += mark

    def erase(self, start: int, stop: int, style: Style) -> None:
        """Blank the columns from ``start`` to before ``stop``."""
        self.split_wide(start)
        self.split_wide(stop)
        self.text[start:stop] = [" "] * (stop - start)
        self.styles[start:stop] = [style] * (stop - start)

    def insert(self, x: int, count: int, style: Style) -> None:
        """Shift the characters from ``x`` on ``count`` columns to the right; those beyond the row are lost."""
        columns = len(self.text)
        count = min(count, columns - x)
        self.split_wide(x)
        self.split_wide(columns - count)
        self.text[x:] = [" "] * count + self.text[x : columns - count]
        self.styles[x:] = [style] * count + self.styles[x : columns - count]

    def delete(self, x: int, count: int, style: Style) -> None:
        """Remove ``count`` columns at ``x``; later ones move to the left."""
        columns = len(self.text)
        count = min(count, columns - x)
        self.split_wide(x)
        self.split_wide(x + count)
        self.text[x:] = self.text[x + count :] + [" "] * count
        self.styles[x:] = self.styles[x + count :] + [style] * count

    def split_wide(self, x: int) -> None:
        """Blank a wide character whose second half is column ``x``, before one half is changed, as xterm does."""
        if x < len(self.text) and self.text[x] == SPACER:
            self.text[x] = " "
            if x:
                self.text[x - 1] = " "

    def resize(self, columns: int) -> None:
        """Cut the row, or lengthen it with blanks."""
        more = columns - len(self.text)
        if more < 0:
            self.split_wide(columns)
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
        return [row.shown for row in self.rows]

    def erase_rows(self, start: int, stop: int, style: Style) -> None:
        """Blank the rows from ``start`` to before ``stop``."""
        self.rows[start:stop] = [Row(self.columns, style) for _ in range(stop - start)]

    def scroll_up(self, top: int, bottom: int, count: int, style: Style) -> None:
        """Remove ``count`` rows at ``top``; blank ones follow the last of the region, ``bottom``."""
        if count == 1:
            # By far the most frequent scroll: no list of all rows is made for it.
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
