"""Splits a terminal's output into text, controls, and sequences that begin with ESC (ECMA-48, xterm's ctlseqs)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

MAX_SEQUENCE = 1024
"""Longest control sequence, in characters; a longer one is ignored."""

MAX_STRING = 4096
"""Longest control string, such as a title, in characters; the rest is ignored."""

MAX_NUMBER = 65535
MAX_PARAMETERS = 32

ESC = "\x1b"
_CANCEL = "\x18\x1a"
_TEXT = re.compile("[^\x00-\x1f\x7f-\x9f]+")
_BODY = re.compile("[ -?]*")
_INTERMEDIATES = re.compile("[ -/]*")
_STRING_END = re.compile("[\x07\x18\x1a\x1b]")
_STRINGS = "]PX^_"

Parameters = list[list[int]]
"""Numbers with their subparameters; -1 stands for an omitted one."""


class Sequences(ABC):
    """Calls its methods for the output given to ``feed``, in pieces of any size."""

    def __init__(self) -> None:
        self._rest = ""
        self._string: str | None = None

    @property
    def pending(self) -> str:
        """The incomplete sequence, which brings another terminal in the same state to the same point."""
        return f"{ESC}{self._string}" if self._string is not None else self._rest

    def forget_pending(self) -> None:
        """Drop an incomplete sequence: the next output does not continue it."""
        self._rest, self._string = "", None

    @abstractmethod
    def text(self, text: str) -> None:
        """Handle characters other than controls."""

    @abstractmethod
    def control(self, character: str) -> None:
        """Handle a control of one character."""

    @abstractmethod
    def escape(self, sequence: str) -> None:
        """Handle an escape sequence without its ESC: intermediate characters and a final one."""

    @abstractmethod
    def control_sequence(self, private: str, parameters: Parameters, final: str) -> None:
        """Handle a control sequence; ``final`` begins with its intermediate characters."""

    @abstractmethod
    def string(self, kind: str, text: str) -> None:
        """Handle a control string; ``kind`` is ``]`` for OSC, ``P`` for DCS, and so on."""

    def feed(self, data: str) -> None:
        """Process more output."""
        data, self._rest = self._rest + data, ""
        position, length = 0, len(data)
        while position < length:
            if self._string is not None:
                position = self._continue_string(data, position)
            elif match := _TEXT.match(data, position):
                self.text(match[0])
                position = match.end()
            elif data[position] == ESC:
                position = self._escape(data, position)
            else:
                self.control(data[position])
                position += 1

    def _escape(self, data: str, start: int) -> int:
        """Handle the sequence that begins at ``start``, and return where it ends."""
        introducer = data[start + 1 : start + 2]
        if introducer == "[":
            return self._control_sequence(data, start + 2)
        if introducer and introducer in _STRINGS:
            self._string = introducer
            return start + 2
        match = _INTERMEDIATES.match(data, start + 1)
        end = match.end() if match else start + 1
        if end == len(data):
            self._rest = data[start : start + MAX_SEQUENCE]
            return end
        if not "0" <= data[end] <= "~":
            # Another control ends the sequence, and is handled itself.
            return end
        self.escape(data[start + 1 : end + 1])
        return end + 1

    def _control_sequence(self, data: str, position: int) -> int:
        body = ""
        while True:
            match = _BODY.match(data, position)
            end = match.end() if match else position
            body = (body + data[position : min(end, position + MAX_SEQUENCE)])[:MAX_SEQUENCE]
            if end == len(data):
                self._rest = f"{ESC}[{body}"
                return end
            final = data[end]
            if final == ESC or final in _CANCEL or final > "~":
                return end if final == ESC or final > "\x9f" else end + 1
            position = end + 1
            if final >= "@":
                if len(body) < MAX_SEQUENCE:
                    self.dispatch(body, final)
                return position
            self.control(final)

    def dispatch(self, body: str, final: str) -> None:
        """Handle the control sequence of ``body``, its parameters and intermediate characters, and ``final``."""
        numbers = body.rstrip(" !\"#$%&'()*+,-./")
        private = numbers[:1] if numbers[:1] in ("<", "=", ">", "?") else ""
        fields = numbers[len(private) :].split(";")[:MAX_PARAMETERS]
        if not all(field.replace(":", "").isdecimal() or not field.replace(":", "") for field in fields):
            return
        parameters = [[_number(part) for part in field.split(":")] for field in fields] if any(fields) else []
        self.control_sequence(private, parameters, body[len(numbers) :] + final)

    def _continue_string(self, data: str, position: int) -> int:
        string = self._string or ""
        match = _STRING_END.search(data, position)
        end = match.start() if match else len(data)
        string += data[position : min(end, position + MAX_STRING - len(string))]
        if match is None:
            self._string = string
            return end
        if match[0] == "\x07" and not string.startswith("]"):
            self._string = (string + "\x07")[:MAX_STRING]
            return end + 1
        self._string = None
        if match[0] not in _CANCEL:
            self.string(string[0], string[1:])
        # ESC begins the terminator, or another sequence.
        return end if match[0] == ESC else end + 1


def _number(digits: str) -> int:
    return min(int(digits[:6]), MAX_NUMBER) if digits else -1
