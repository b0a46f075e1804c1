"""Output of machines for an agent: data, never instructions, without control characters of a terminal."""

from __future__ import annotations

from connmgr.printable import visible

MOST_BEHIND = 3
"""Most bytes of a UTF-8 character after its first one."""


def text_of(data: bytes) -> str:
    """Return output as text; bytes that are not UTF-8 become U+FFFD."""
    return visible(data.decode(errors="replace"), lines=True)


def last_line(data: bytes, most: int) -> str:
    """Return the last line of ``data`` that is not empty, at most ``most`` characters of it."""
    lines = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
    return visible(lines[-1])[:most] if lines else ""


def whole_end(data: bytes) -> bytes:
    """Return ``data`` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if length > back else data
    return data


def whole_start(data: bytes) -> bytes:
    """Return ``data`` without the rest of a UTF-8 character at its start."""
    for at in range(min(4, len(data))):
        if data[at] & 0xC0 != 0x80:
            return data[at:]
    return data if len(data) > MOST_BEHIND else b""
