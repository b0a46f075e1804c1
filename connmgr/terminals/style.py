"""The style of a character: its colours and attributes, as SGR (ECMA-48, 8.3.117) sets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

DEFAULT_COLOUR = -1
TRUE_COLOUR = 1 << 24
"""Added to 24-bit colours; smaller numbers are indices of the 256-colour palette."""

BOLD, DIM, ITALIC, UNDERLINE, BLINK, REVERSE, HIDDEN, STRIKE = (1 << bit for bit in range(8))

_SET = {1: BOLD, 2: DIM, 3: ITALIC, 4: UNDERLINE, 5: BLINK, 6: BLINK, 7: REVERSE, 8: HIDDEN, 9: STRIKE, 21: UNDERLINE}
_UNSET = {22: BOLD | DIM, 23: ITALIC, 24: UNDERLINE, 25: BLINK, 27: REVERSE, 28: HIDDEN, 29: STRIKE}
_TOLD = {BOLD: 1, DIM: 2, ITALIC: 3, UNDERLINE: 4, BLINK: 5, REVERSE: 7, HIDDEN: 8, STRIKE: 9}

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
        codes = ["0", *(str(code) for bit, code in _TOLD.items() if self.attributes & bit)]
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


def restyled(style: Style, parameters: Sequence[Sequence[int]]) -> Style:
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
        values = [next(rest, [-1])[0] for _ in range({2: 3, 5: 1}.get(kind, 0))]
    if len(values) != {2: 3, 5: 1}.get(kind) or not all(0 <= value <= 255 for value in values):
        return None
    return values[0] if kind == 5 else TRUE_COLOUR | values[0] << 16 | values[1] << 8 | values[2]
