"""A decoder of JSON that lets other threads run meanwhile.

That of the standard library is one call in C, which keeps the interpreter for tens of milliseconds where a text has
megabytes of escapes, or hundreds of thousands of strings. This one is written in Python and takes ten times as long; it
calls the other for values that are short, and for pieces of those that are not.
"""

from __future__ import annotations

import json
import re
from typing import Any

from connmgr.computing import give_way

PIECE = 32 * 1024
"""Most characters of a string that one call decodes."""

VALUES = 256
"""So many values of a container are decoded before others may go first."""

_BLANK = re.compile(r"[ \t\n\r]*")
_STRING_PIECE = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


class PieceDecoder:
    """Decodes what ``decoder`` does, with its errors; but of its hooks for objects only that for pairs."""

    def __init__(self, decoder: json.JSONDecoder) -> None:
        self._decoder = decoder

    def decode(self, text: str) -> Any:
        """Return the value of ``text``.

        :raises json.JSONDecodeError: it is not JSON.
        :raises RecursionError: it is nested too deeply.
        """
        value, at = self._value(text, _past_blank(text, 0))
        end = _past_blank(text, at)
        if end != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
        return value

    def _value(self, text: str, at: int) -> tuple[Any, int]:
        first = text[at : at + 1]
        if first == '"':
            return self._string(text, at)
        if first == "[":
            return self._array(text, at + 1)
        if first == "{":
            return self._object(text, at + 1)
        return self._decoder.raw_decode(text, at)

    def _array(self, text: str, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = _past_blank(text, at)
        if text[at : at + 1] == "]":
            return values, at + 1
        while True:
            value, at = self._value(text, at)
            values.append(value)
            if not len(values) % VALUES:
                give_way()
            at = _past_blank(text, at)
            mark = text[at : at + 1]
            if mark == "]":
                return values, at + 1
            if mark != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            at = _past_blank(text, at + 1)

    def _object(self, text: str, at: int) -> tuple[Any, int]:
        pairs: list[tuple[str, Any]] = []
        at = _past_blank(text, at)
        if text[at : at + 1] == "}":
            return self._made(pairs), at + 1
        while True:
            if text[at : at + 1] != '"':
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
            name, at = self._string(text, at)
            at = _past_blank(text, at)
            if text[at : at + 1] != ":":
                raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
            value, at = self._value(text, _past_blank(text, at + 1))
            pairs.append((name, value))
            if not len(pairs) % VALUES:
                give_way()
            at = _past_blank(text, at)
            mark = text[at : at + 1]
            if mark == "}":
                return self._made(pairs), at + 1
            if mark != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            at = _past_blank(text, at + 1)

    def _made(self, pairs: list[tuple[str, Any]]) -> Any:
        made = self._decoder.object_pairs_hook
        return dict(pairs) if made is None else made(pairs)

    def _string(self, text: str, quote: int) -> tuple[str, int]:
        """Return the string that begins with the ``quote``, and the place after its end."""
        end = text.find('"', quote + 1, quote + PIECE)
        if end >= 0 and text.find("\\", quote + 1, end) < 0:
            string: tuple[str, int] = self._decoder.raw_decode(text, quote)
            return string
        pieces: list[str] = []
        at = quote + 1
        while True:
            # It ends at a quote, at the end of the piece, or before an escape that goes on behind that.
            end = _STRING_PIECE.match(text, at, at + PIECE).end()  # type: ignore[union-attr]
            is_last = text[end : end + 1] == '"'
            if not is_last:
                if end < at + PIECE - 1:
                    raise json.JSONDecodeError("Unterminated string starting at", text, quote)
                # An escape of four digits may go on, too; then this piece ends before its backslash.
                split = text.rfind("\\u", end - 5, end)
                if split >= 0 and _is_escape(text, at, split):
                    end = split
            pieces.append(self._decoded(text, at, end))
            if is_last:
                return _joined(pieces), end + 1
            at = end
            give_way()

    def _decoded(self, text: str, start: int, end: int) -> str:
        try:
            decoded: str = self._decoder.decode(f'"{text[start:end]}"')
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, text, start + error.pos - 1) from None
        return decoded


def _past_blank(text: str, at: int) -> int:
    """Return the place of the first character from ``at`` on that is not blank."""
    while True:
        end = _BLANK.match(text, at, at + PIECE).end()  # type: ignore[union-attr]
        if end < at + PIECE:
            return end
        at = end


def _is_escape(text: str, start: int, backslash: int) -> bool:
    """Whether the backslash begins an escape, and does not end one."""
    first = backslash
    while first > start and text[first - 1] == "\\":
        first -= 1
    return (backslash - first) % 2 == 0


def _joined(pieces: list[str]) -> str:
    """Join the pieces of a string, and the halves of a character that two escapes give, one in each piece."""
    for number in range(len(pieces) - 1):
        high, low = pieces[number][-1:], pieces[number + 1][:1]
        if "\ud800" <= high <= "\udbff" and "\udc00" <= low <= "\udfff":
            pair = (high + low).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            pieces[number], pieces[number + 1] = pieces[number][:-1] + pair, pieces[number + 1][1:]
    return "".join(pieces)
