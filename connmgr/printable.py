"""Makes text of remote hosts and strangers fit for a message, a terminal or an agent."""

from __future__ import annotations

import re

_HIDDEN = (
    # Controls beyond the first 32 characters.
    "\x7f-\x9f"
    # Invisible characters, and those that change the order in which a line is read.
    "\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    # Surrogates, which are not characters, and tags, which only programs see.
    "\ud800-\udfff\U000e0000-\U000e0fff"
)

_IN_A_LINE = f"[\x00-\x1f{_HIDDEN}]"
_IN_LINES = f"[\x00-\x08\x0b\x0c\x0e-\x1f{_HIDDEN}]|\r(?!\n)"
"""A carriage return is allowed only as part of a line end."""


def visible(text: str, *, lines: bool = False) -> str:
    """Return ``text`` with invisible characters, and those that control a terminal, as escape sequences.

    Text of several ``lines`` keeps its newlines and tabs, and spaces of every kind.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = re.sub(_IN_LINES if lines else _IN_A_LINE, lambda match: _escaped(match[0]), text)
    if lines:
        return shown
    return "".join(character if character.isprintable() else _escaped(character) for character in shown)


def gist(text: str, most: int = 60) -> str:
    """Return the first line of ``text``, of at most ``most`` characters; an ellipsis says that there is more."""
    first, _, rest = text.partition("\n")
    shown = visible(first)
    return f"{shown[: most - 1]}…" if rest.strip() or len(shown) > most else shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def in_one_line(text: str) -> str:
    """Return ``text`` for a message: in one line, without characters that control a terminal."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
