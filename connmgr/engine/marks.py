"""The marks in a command's streams, which delimit its output, its state and its end.

A marker is a colon, a random nonce of 128 bits that only this frame contains, a tag and a newline. Output cannot
imitate it, and when the shell prints the frame (``set -x``), no colon precedes the nonce. A marker has one newline,
because bash writes line by line.

Tags on stdout, after the output, in this order and each at most once: ``c`` begins the working directory; ``p`` means
that the command moved to another directory, and begins that name if it differs; ``v`` begins the exported variables,
``x`` the output of an EXIT trap. ``g`` means that the requested directory cannot be entered, ``l`` that the session's
own is lost. A blank and a number end the command with that status. On stderr the bare nonce is the only mark, and the
end.

If anything else follows a nonce, the shell's state is unknown, and :class:`UnknownMark` is raised.
"""

from __future__ import annotations

import re

from connmgr.engine.words import DIRECTORY, LOST, MOVED, REFUSED, REST, VARIABLES

STATE_BYTES = 512 << 10
"""Most bytes of working directory, and of variables; a larger state is not carried over."""

TAG_BYTES = len(" 65535\r")
"""Most bytes between a nonce and its newline."""

_OUTPUT = ""  # the section before the first letter
_TAG = re.compile(rb"(?P<status> [0-9]{1,5})?(?P<letter>[a-z])?(?P<translated>\r?)")
_FOLLOWING = {
    "": (DIRECTORY, REFUSED, LOST),
    DIRECTORY: (MOVED, VARIABLES),
    MOVED: (VARIABLES,),
    VARIABLES: (REST,),
}
"""The letters that may follow each letter on stdout."""


class UnknownMark(Exception):
    """A nonce is followed by no mark, or by one that is not allowed there."""


class MarkedStream:
    """Separates one stream of a command into output, state and end.

    At most ``limit`` bytes of output are kept; ``truncated`` is set if more came. The end of ``stderr`` is bare.
    """

    def __init__(self, nonce: str, limit: int, *, stderr: bool = False) -> None:
        self._stderr = stderr
        self._letter = ""
        self._marker = b":" + nonce.encode()
        self.limit = limit
        self._pending = b""
        self._section = _OUTPUT
        self._state_complete = False
        self._translated = False
        self._sections = {name: bytearray() for name in (_OUTPUT, DIRECTORY, MOVED, VARIABLES)}
        self.truncated = False
        self.moved = False
        self.directory_refused = False
        self.directory_lost = False
        self.ended = False
        self.status = 0

    @property
    def output(self) -> bytearray:
        return self._sections[_OUTPUT]

    def take(self) -> bytes:
        """Return the output kept so far, and drop it."""
        taken, self._sections[_OUTPUT] = bytes(self._sections[_OUTPUT]), bytearray()
        return taken

    @property
    def state(self) -> tuple[bytes, bytes] | None:
        """The working directory and the variables as printed, or None if the command printed neither."""
        sections = self._sections
        directory, variables = sections[MOVED] or sections[DIRECTORY], sections[VARIABLES]
        if not self._state_complete or max(len(directory), len(variables)) >= STATE_BYTES:
            return None
        if self._translated:
            directory, variables = (part.replace(b"\r\n", b"\n") for part in (directory, variables))
        return bytes(directory.removesuffix(b"\n")), bytes(variables)

    def parse(self, data: bytes) -> None:
        """Process the next bytes of the stream; those after its end are dropped.

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
            line_end = data.find(b"\n", tag, tag + TAG_BYTES + 1)
            if line_end < 0 and len(data) - tag > TAG_BYTES:
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
            # The command has made the terminal translate newlines.
            self._translated = True
        if match["letter"]:
            self._begin(match["letter"].decode())
        elif (match["status"] is None) != self._stderr:
            raise UnknownMark
        else:
            self.ended = True
            self.status = int(match["status"] or 0)

    def _begin(self, letter: str) -> None:
        if self._stderr or letter not in _FOLLOWING.get(self._letter, ()):
            raise UnknownMark
        self._letter = letter
        if letter == REFUSED:
            self.directory_refused = True
        elif letter == LOST:
            self.directory_lost = True
        else:
            self._section = _OUTPUT if letter == REST else letter
            self.moved = self.moved or letter == MOVED
            self._state_complete = letter == REST

    def _keep(self, data: bytes, start: int, end: int) -> None:
        if start >= end:
            return
        kept = self._sections[self._section]
        limit = self.limit if self._section == _OUTPUT else STATE_BYTES
        room = max(0, limit - len(kept))
        if end - start > room:
            self.truncated = self.truncated or self._section == _OUTPUT
            end = start + room
        kept += memoryview(data)[start:end]
