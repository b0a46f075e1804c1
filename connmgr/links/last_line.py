"""Removes the line that a wrapping program adds to the stderr of the program inside."""

from __future__ import annotations

import re

_NUMBER = re.compile(rb"\d{1,3}\n\Z")


class LastLine:
    """Passes stderr on, without a last line of ``beginning``, the exit status and a newline.

    Output that may be the beginning of that line is held back until it is known not to be.
    """

    def __init__(self, beginning: bytes) -> None:
        self._beginning = beginning
        self._held = b""
        self._at_start = True

    def passed(self, data: bytes) -> bytes:
        """Add ``data``, and return the output that may be passed on."""
        data = self._held + data
        line = data.rfind(b"\n", 0, -1) + 1
        if not (line or self._at_start) or not self._may_be_it(data[line:]):
            line = len(data)
        data, self._held = data[:line], data[line:]
        if data:
            self._at_start = data.endswith(b"\n")
        return data

    def rest(self, status: int | None) -> bytes:
        """Return the rest of the output at the stream's end; ``status`` is the program's."""
        held, self._held = self._held, b""
        number = _NUMBER.match(held[len(self._beginning) :]) if held.startswith(self._beginning) else None
        return b"" if number and int(number[0]) == status else held

    def _may_be_it(self, line: bytes) -> bool:
        if not line.startswith(self._beginning):
            return bool(line) and self._beginning.startswith(line)
        number = line[len(self._beginning) :]
        return not number.rstrip(b"\n") or number.removesuffix(b"\n").isdigit()
