"""What machines have printed, as an agent is shown it: data, never instructions, without what controls a terminal."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    # Controls but newline and tab; a carriage return only stands where a line ends by it.
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)"
    # What is not seen, or lets a line be read in another order than it has.
    r"|[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
    # No characters at all, and letters that only programs see.
    r"|[\ud800-\udfff\U000e0000-\U000e0fff]"
)


MOST_BEHIND = 3
"""Bytes of a character behind its first one."""


def visible(text: str) -> str:
    """Return ``text`` with each character that is not seen, or controls a terminal, written as an escape sequence."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def text_of(data: bytes) -> str:
    """Return output as text to be shown; what is no UTF-8 is U+FFFD."""
    return visible(data.decode(errors="replace"))


def last_line(data: bytes, most: int) -> str:
    """Return the last line of ``data`` that is not empty, ``most`` characters of it at most."""
    lines = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
    return visible(lines[-1])[:most] if lines else ""


def whole_end(data: bytes) -> bytes:
    """Return ``data`` without the beginning of a character of UTF-8 at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if length > back else data
    return data


def whole_start(data: bytes) -> bytes:
    """Return ``data`` without the end of a character of UTF-8 at its start."""
    for at in range(min(4, len(data))):
        if data[at] & 0xC0 != 0x80:
            return data[at:]
    return data if len(data) > MOST_BEHIND else b""
