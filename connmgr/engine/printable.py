"""Makes a far side's output fit for an error's message."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return ``text`` in one line without terminal control characters."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
