"""The picture of a key by which people recognise it."""

from __future__ import annotations

import base64
import hashlib

COLUMNS, ROWS = 17, 9
_SHADES = " .o+=*BOX@%&#/^"
_START, _END = "S", "E"


def randomart(key: str) -> str:
    """Return the picture that ``ssh-keygen -lv`` draws of ``key``, which is its type and base64.

    The bishop walks as in Loss, Limmer and von Gernler, "The drunken bishop: An analysis of the OpenSSH fingerprint
    visualization algorithm" (2009), over the SHA-256 digest.
    """
    blob = base64.b64decode(key.split()[1])
    field, end = _walked(hashlib.sha256(blob).digest())
    last = len(_SHADES) - 1
    lines = ["".join(_SHADES[min(visits, last)] for visits in row) for row in field]
    for (column, row), letter in (((COLUMNS // 2, ROWS // 2), _START), (end, _END)):
        lines[row] = lines[row][:column] + letter + lines[row][column + 1 :]
    return "\n".join([_border(_kind(blob)), *(f"|{line}|" for line in lines), _border("SHA256")])


def _border(title: str) -> str:
    boxed = f"[{title}]"
    return f"+{'-' * ((COLUMNS - len(boxed)) // 2)}{boxed}".ljust(COLUMNS + 1, "-") + "+"


def _walked(digest: bytes) -> tuple[list[list[int]], tuple[int, int]]:
    """Return how often the bishop was on each square, and where it ended."""
    field = [[0] * COLUMNS for _ in range(ROWS)]
    column, row = COLUMNS // 2, ROWS // 2
    for byte in digest:
        for shift in (0, 2, 4, 6):
            step = byte >> shift
            column = min(max(column + (1 if step & 1 else -1), 0), COLUMNS - 1)
            row = min(max(row + (1 if step & 2 else -1), 0), ROWS - 1)
            field[row][column] += 1
    return field, (column, row)


def _kind(blob: bytes) -> str:
    """Return the name and the size in bits of a key, such as ``ED25519 256``."""
    parts = _parts(blob)
    name = parts[0].decode("ascii", "replace")
    if name.startswith("ecdsa-sha2-nistp"):
        return f"ECDSA {name.removeprefix('ecdsa-sha2-nistp')}"
    if name == "ssh-rsa" and len(parts) == 3:
        return f"RSA {int.from_bytes(parts[2], 'big').bit_length()}"
    return f"{name.removeprefix('ssh-').upper()} {len(parts[-1]) * 8}"


def _parts(blob: bytes) -> list[bytes]:
    parts = []
    while len(blob) >= 4:
        size = int.from_bytes(blob[:4], "big")
        parts.append(blob[4 : 4 + size])
        blob = blob[4 + size :]
    return parts or [b""]
