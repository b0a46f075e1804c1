"""The marks in a command's two streams: where its output ends, what its state is, and how it ended.

A marker is a colon, a random nonce of 128 bits that only this frame holds, a tag and a newline. Output cannot imitate
it, and no text that the shell may print of the frame (``set -x``) has a colon before the nonce. It has one newline,
because bash writes line by line.

Tags on stdout, after the output: ``c`` begins the working directory, ``p`` says that the command has moved to another
and begins the name of that where it is not the one above, ``v`` the exported variables, ``x`` more output
(of an EXIT trap); ``g`` says that the directory asked for could not be entered, ``l`` that the session's own is lost; a
blank and a number end the command with that status. They come in this order, each once at most. On stderr the bare
nonce ends, and is the only mark.

A nonce that leads anything else was not printed by a supervisor that does what it was told: nobody knows what state the
shell is in, and :class:`UnknownMark` is raised.
"""

from __future__ import annotations

import re

STATE_LIMIT = 512 << 10
"""Bytes of working directory, and of variables, that are kept; a larger state is not carried over."""

TAG_LIMIT = len(" 65535\r")
"""Bytes between a nonce and its newline, at most."""

_TAG = re.compile(rb"(?P<status> [0-9]{1,5})?(?P<letter>[cpvxgl])?(?P<translated>\r?)")
_FOLLOWING = {"": "cgl", "c": "pv", "p": "v", "v": "x"}
"""The letters that may follow each letter on stdout."""


class UnknownMark(Exception):
    """What follows a nonce is no mark, or not one that may come there."""


class MarkedStream:
    """Reads one stream of a command by position: what belongs to it, what is its state, and where it ends.

    At most ``limit`` bytes of output are kept; the rest is counted off and ``truncated`` set. The end of ``stderr`` is
    bare.
    """

    def __init__(self, nonce: str, limit: int, *, stderr: bool = False) -> None:
        self._stderr = stderr
        self._letter = ""
        self._marker = b":" + nonce.encode()
        self.limit = limit
        self._pending = b""
        self._section = "b"
        self._state_complete = False
        self._translated = False
        self._sections = {"b": bytearray(), "c": bytearray(), "p": bytearray(), "v": bytearray()}
        self.truncated = False
        self.moved = False
        self.directory_refused = False
        self.directory_lost = False
        self.ended = False
        self.status = 0

    @property
    def output(self) -> bytearray:
        return self._sections["b"]

    def take(self) -> bytes:
        """Return the output that is kept, and keep it no longer."""
        taken, self._sections["b"] = bytes(self._sections["b"]), bytearray()
        return taken

    @property
    def state(self) -> tuple[bytes, bytes] | None:
        """The working directory and the variables as printed; None where the command did not come to print them."""
        sections = self._sections
        directory, variables = sections["p"] or sections["c"], sections["v"]
        if not self._state_complete or max(len(directory), len(variables)) >= STATE_LIMIT:
            return None
        if self._translated:
            directory, variables = (part.replace(b"\r\n", b"\n") for part in (directory, variables))
        return bytes(directory.removesuffix(b"\n")), bytes(variables)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream; whatever follows its end is dropped.

        :raises UnknownMark: the shell is in an unknown state.
        """
        if self.ended or not data:
            return
        data = self._pending + data
        marker, start = self._marker, 0
        while True:
            at = data.find(marker, start)
            if at < 0:
                held = self._possible_marker(data, start)
                self._keep(data, start, len(data) - held)
                self._pending = data[len(data) - held :]
                return
            tag = at + len(marker)
            line_end = data.find(b"\n", tag, tag + TAG_LIMIT + 1)
            if line_end < 0 and len(data) - tag > TAG_LIMIT:
                raise UnknownMark
            self._keep(data, start, at)
            if line_end < 0:
                self._pending = data[at:]
                return
            self._enter(data[tag:line_end])
            start = line_end + 1
            if self.ended:
                return

    def _possible_marker(self, data: bytes, start: int) -> int:
        at = data.rfind(b":", max(start, len(data) - len(self._marker) + 1))
        return len(data) - at if at >= 0 and self._marker.startswith(data[at:]) else 0

    def _enter(self, tag: bytes) -> None:
        match = _TAG.fullmatch(tag)
        if match is None or (match["status"] and match["letter"]):
            raise UnknownMark
        if match["translated"]:
            # A terminal that the command has set to translate newlines.
            self._translated = True
        if match["letter"]:
            self._begin(match["letter"].decode())
        elif (match["status"] is None) != self._stderr:
            raise UnknownMark
        else:
            self.ended = True
            self.status = int(match["status"] or 0)

    def _begin(self, letter: str) -> None:
        if self._stderr or letter not in _FOLLOWING.get(self._letter, ""):
            raise UnknownMark
        self._letter = letter
        if letter == "g":
            self.directory_refused = True
        elif letter == "l":
            self.directory_lost = True
        else:
            self._section = {"c": "c", "p": "p", "v": "v", "x": "b"}[letter]
            self.moved = self.moved or letter == "p"
            self._state_complete = letter == "x"

    def _keep(self, data: bytes, start: int, end: int) -> None:
        if start >= end:
            return
        kept = self._sections[self._section]
        limit = self.limit if self._section == "b" else STATE_LIMIT
        room = max(0, limit - len(kept))
        if end - start > room:
            self.truncated = self.truncated or self._section == "b"
            end = start + room
        kept += memoryview(data)[start:end]
