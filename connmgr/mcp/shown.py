"""What machines have printed, as an agent is shown it: data, never instructions, without what controls a terminal."""

from __future__ import annotations

_KEPT = {"\n", "\t"}


def visible(text: str) -> str:
    """Return ``text`` with each control character but newlines and tabs written as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(one if one in _KEPT or one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
