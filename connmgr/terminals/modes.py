"""The private modes (DECSET) that a screen follows and an attaching client gets."""

from __future__ import annotations

REVERSED = 5
ORIGIN = 6
AUTOWRAP = 7
CURSOR = 25

ALTERNATE = frozenset({47, 1047, 1049})
"""Modes that switch between the two screens; 1049 saves the cursor before, and restores it afterwards."""

INITIAL = frozenset({AUTOWRAP, CURSOR})

_MOUSE = frozenset({9, 1000, 1002, 1003})
_MOUSE_FORMAT = frozenset({1005, 1006, 1015, 1016})
_ALONE: frozenset[int] = frozenset()

FOLLOWED_MODES: dict[int, frozenset[int]] = {
    **{number: _MOUSE - {number} for number in _MOUSE},
    **{number: _MOUSE_FORMAT - {number} for number in _MOUSE_FORMAT},
    # Cursor keys, reverse video, origin, wrapping, visible cursor, keypad, focus, alternate scroll, bracketed paste.
    **dict.fromkeys((1, REVERSED, ORIGIN, AUTOWRAP, CURSOR, 66, 1004, 1007, 2004), _ALONE),
}
"""The remembered modes, each with the modes that it replaces."""
