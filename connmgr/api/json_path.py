"""Finds the path of an error in a JSON text that the parser has refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

WHOLE_BODY = "The request body"
LONGEST_NAME = 100
LONGEST_PLACE = 500
LONGEST_TEXT, DEEPEST = 64 * 1024, 64
"""Limits of the search, in characters and levels; an error beyond them is reported without its path."""

Path = tuple[str | int, ...]

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^\s][^][{}:,"\s]*', re.DOTALL)
_NAME = ":"


class Refused(ValueError):
    """The error: a ``literal`` that is not accepted, or a ``name`` that occurs twice in an object."""

    def __init__(self, message: str, *, literal: str = "", name: str = "") -> None:
        super().__init__(message)
        self.literal = literal
        self.name = name


def place_of(refused: Refused, text: str) -> str:
    """Return the path of the refused value in ``text``, such as ``data.port``."""
    seen: set[Path] = set()
    for piece, path in _walk(text):
        # The decoder stops after a literal, whatever follows.
        if refused.literal and piece.startswith(refused.literal):
            return _joined(path)
        if not refused.literal and piece == _NAME and path[-1] == refused.name:
            if path in seen:
                return _joined(path)
            seen.add(path)
    return _joined((refused.name,))


def place_of_depth(text: str, levels: int) -> str:
    """Return the path of the first array or object in ``text`` that is nested in ``levels`` others."""
    return next((_joined(path) for piece, path in _walk(text) if piece in "{[" and len(path) == levels), WHOLE_BODY)


def _walk(text: str) -> Iterator[tuple[str, Path]]:
    """Yield each value's first piece with the value's path, and ``:`` with the path of each name.

    Stop where the text is no longer JSON, or is too long or too deep.
    """
    path: list[str | int] = []
    # Whether the next item in an object is a value.
    named = False
    for found in _PIECE.finditer(text, 0, LONGEST_TEXT):
        piece = found[0]
        if len(path) > DEEPEST or (not path and piece in "]},:"):
            return
        if piece in "]}":
            path.pop()
            named = True
        elif piece == ",":
            if isinstance(path[-1], int):
                path[-1] += 1
            named = False
        elif piece == _NAME:
            yield piece, tuple(path)
        elif path and isinstance(path[-1], str) and not named:
            path[-1] = json.loads(piece)
            named = True
        else:
            yield piece, tuple(path)
            if piece in "{[":
                path.append("" if piece == "{" else 0)
                named = False


def _joined(path: Path) -> str:
    return ".".join(str(part)[:LONGEST_NAME] for part in path)[:LONGEST_PLACE] or WHOLE_BODY
