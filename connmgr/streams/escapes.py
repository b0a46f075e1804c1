"""The keys of ssh for the program at this side of a terminal: an escape character at the beginning of a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

LINE_ENDS = (b"\r", b"\n")


class Escapes:
    """Finds the escape character after the end of a line, and runs the action of the next character.

    ``meanings`` has the action of each character except the escape character itself. Any other character goes to the
    remote program after the escape character, as with ssh; the escape character twice sends it once.
    """

    def __init__(self, character: str, meanings: Mapping[bytes, Callable[[], None]]) -> None:
        self._character = character.encode("latin-1")
        self._meanings = meanings
        self._at_beginning = True
        self._escaped = False

    def typed(self, data: bytes) -> bytes:
        """Return the part of ``data`` that is for the remote program."""
        # A shortcut: pasted text would otherwise be examined byte by byte.
        if not self._escaped and self._character not in data:
            self._at_beginning = data[-1:] in LINE_ENDS
            return data
        passed = bytearray()
        for value in data:
            passed += self._of(bytes((value,)))
        return bytes(passed)

    def _of(self, key: bytes) -> bytes:
        if self._escaped:
            self._escaped = False
            if key == self._character:
                self._at_beginning = False
                return key
            if key in self._meanings:
                self._at_beginning = True
                self._meanings[key]()
                return b""
            self._at_beginning = key in LINE_ENDS
            return self._character + key
        if key == self._character and self._at_beginning:
            self._escaped = True
            return b""
        self._at_beginning = key in LINE_ENDS
        return key
