"""Names of keys, and the bytes that a terminal sends for them."""

from __future__ import annotations

from connmgr.client import ClientError

_NAMED = {
    "enter": "\r",
    "tab": "\t",
    "shift-tab": "\x1b[Z",
    "escape": "\x1b",
    "space": " ",
    "backspace": "\x7f",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "insert": "\x1b[2~",
    "delete": "\x1b[3~",
    "page-up": "\x1b[5~",
    "page-down": "\x1b[6~",
}
_FUNCTION = dict(
    zip(
        (f"f{number}" for number in range(1, 13)),
        (*(f"\x1bO{letter}" for letter in "PQRS"), *(f"\x1b[{code}~" for code in (15, 17, 18, 19, 20, 21, 23, 24))),
        strict=True,
    )
)
NAMES = (*_NAMED, *_FUNCTION)


def sent(key: str) -> bytes:
    """Return the bytes that a terminal sends for a key: one of :data:`NAMES`, ``ctrl-c`` or ``alt-x``.

    :raises ClientError: ``invalid_arguments``: there is no such key.
    """
    name = key.lower()
    if name in _NAMED or name in _FUNCTION:
        return (_NAMED | _FUNCTION)[name].encode()
    if len(key) == len("ctrl-x") and name.startswith("ctrl-") and "@" <= key[-1].upper() <= "_":
        return bytes([ord(key[-1].upper()) & 0x1F])
    if len(key) == len("alt-x") and name.startswith("alt-") and " " <= key[-1] <= "~":
        return b"\x1b" + key[-1].encode()
    raise ClientError(f"keys: no key is called {key[:20]!r}.", "invalid_arguments", 0)
