"""The modes, title and margins that skipped output sets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from connmgr.terminals.modes import ALTERNATE, FOLLOWED_MODES
from connmgr.terminals.screen import Screen
from connmgr.terminals.style import PLAIN

OVERLAP_BYTES = 600
"""Longest sequence that is found across the border of two pieces."""

MOST_FOUND = 500
"""Most different findings; a terminal has a tenth as many modes."""

_ESC = b"\x1b"
_MODES = FOLLOWED_MODES.keys() | ALTERNATE
# Colours, by far the most frequent sequences, are ruled out first.
_FOUND = re.compile(
    rb"\x1b(?!\[[0-9;]{0,64}m)"
    rb"(?:\[\?(?P<modes>[0-9;]{1,64}[hl])|\[(?P<margins>[0-9;]{0,11})r|(?P<reset>c)|(?P<soft>\[!p)|(?P<keypad>[=>])"
    rb"|\][02](?P<title>;[^\x00-\x1f]{0,512})[\x07\x1b])"
)

Finding = tuple[bytes, ...]
"""The groups of the expression above; of the modes there is one."""


class Skipped:
    """Findings in the skipped pieces of output."""

    def __init__(self) -> None:
        self._tail = b""
        # In the order of their last occurrence.
        self._found: dict[Finding, None] = {}

    def scan(self, piece: bytes) -> None:
        """Search the next piece."""
        text = self._tail + piece
        self._tail = text[-OVERLAP_BYTES:]
        if _ESC not in text:
            return
        for found in reversed(dict.fromkeys(reversed(_FOUND.findall(text)))):
            for one in _apart(found):
                self._found.pop(one, None)
                self._found[one] = None
                if one[2]:
                    self._found = {one: None}
        while len(self._found) > MOST_FOUND:
            del self._found[next(iter(self._found))]

    def apply(self, screen: Screen) -> None:
        """Apply the findings to ``screen``; the next output then continues after the skipped part."""
        screen.forget_pending()
        screen.style = PLAIN
        for modes, margins, reset, soft, keypad, title in self._found:
            if reset:
                screen.reset()
            elif soft:
                screen.soft_reset()
            elif modes:
                screen.set_mode(int(modes[:-1]), modes.endswith(b"h"))
            elif keypad:
                screen.keypad = keypad == b"="
            elif title:
                screen.string("]", f"2{title.decode(errors='replace')}")
            else:
                _set_margins(screen, margins)
        # After much output the cursor is usually at the bottom.
        screen.x, screen.y = 0, screen.bottom


def _apart(found: Finding) -> Iterator[Finding]:
    """Yield a finding for each mode, so that few differ: another alternate screen costs as much as drawing it."""
    modes = found[0]
    if not modes:
        yield found
    for number in modes[:-1].split(b";"):
        if number and int(number) in _MODES:
            yield (b"%d%c" % (int(number), modes[-1]), *found[1:])


def _set_margins(screen: Screen, text: bytes) -> None:
    top, _, bottom = text.partition(b";")
    last = int(bottom) if bottom.isdigit() and int(bottom) else screen.rows
    screen.set_margins((int(top) if top.isdigit() and int(top) else 1) - 1, min(last, screen.rows) - 1)
