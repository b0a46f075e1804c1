"""What a far side has printed, as an error's message quotes it."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return ``text`` in one line, with nothing in it that would control a terminal."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
