"""Checks the length of a request by RFC 9112; an ambiguous length could hide one request in another."""

from __future__ import annotations

import re
from typing import Any

from waitress.parser import ParsingError
from waitress.utilities import BadRequest

LINE_BYTES = 1024
"""Longest line with the size of a chunk."""

TRAILER_BYTES = 8 * 1024
"""Most bytes of the fields after the last chunk."""

_BARE_LF = re.compile(rb"(?<!\r)\n")
_START = re.compile(rb"[^\x00-\x1f\x7f]+ HTTP/1\.[01][ \t]*")
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_EXTENSION = rb"[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:%b)*" % _EXTENSION)
_FIELD = re.compile(_TOKEN + rb":[^\x00-\x08\x0a-\x1f\x7f]*")


def check_head(head: bytes) -> None:
    """Refuse a header that waitress accepts and another program could read as a longer or shorter request.

    :raises ParsingError: a version other than 1.0 and 1.1, a control character in the first line, a folded line, more
        than one length, or a coding other than ``chunked``, in HTTP/1.0 or together with a length.
    """
    first, *lines = head.split(b"\r\n")
    if not _START.fullmatch(first):
        raise ParsingError("Not the first line of a request of HTTP/1.0 or HTTP/1.1")
    lengths, codings = 0, []
    for line in lines:
        if line.startswith((b" ", b"\t")):
            raise ParsingError("A folded header line")
        name, _, value = line.partition(b":")
        lowered = name.lower()
        if lowered == b"content-length":
            lengths += 1
        elif lowered == b"transfer-encoding":
            codings.append(value.strip(b" \t").lower())
    if lengths + len(codings) > 1:
        raise ParsingError("More than one length")
    if codings and (codings != [b"chunked"] or not first.rstrip().endswith(b"1.1")):
        raise ParsingError("A transfer coding that is not supported")


def has_bare_lf(unfinished: bytes) -> bool:
    """Whether a line of a header ends without CR; its sender may consider the header complete."""
    return _BARE_LF.search(unfinished) is not None


class ChunkedBody:
    """Decodes a chunked body into ``buf``, with the interface of waitress's receivers.

    ``error`` is the fault found in it; ``completed`` is set when it is complete.
    """

    def __init__(self, buf: Any) -> None:
        self.buf = buf
        self.completed = False
        self.error: BadRequest | None = None
        self._chunk_left = 0
        self._line = b""
        self._trailer_left = TRAILER_BYTES
        self._expected = self._size

    def __len__(self) -> int:
        return len(self.buf)

    def received(self, data: bytes) -> int:
        """Take ``data``, and return how many bytes of it belong to this body."""
        rest = data
        while rest and not (self.completed or self.error):
            rest = self._chunk(rest) if self._chunk_left else self._one_line(rest)
        return len(data) - len(rest)

    def getfile(self) -> Any:
        return self.buf.getfile()

    def getbuf(self) -> Any:
        return self.buf

    def _chunk(self, rest: bytes) -> bytes:
        piece = rest[: self._chunk_left]
        self.buf.append(piece)
        self._chunk_left -= len(piece)
        return rest[len(piece) :]

    def _one_line(self, rest: bytes) -> bytes:
        before = len(self._line)
        self._line += rest[:LINE_BYTES]
        end = self._line.find(b"\r\n")
        if end < 0:
            if len(self._line) > LINE_BYTES:
                self.error = BadRequest("A line between chunks is too long")
            return rest[LINE_BYTES:]
        line, self._line = self._line[:end], b""
        self._expected(line)
        return rest[end + 2 - before :]

    def _size(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if not found:
            self.error = BadRequest("Not the size of a chunk")
            return
        self._chunk_left = int(found[1], 16)
        self._expected = self._end_of_chunk if self._chunk_left else self._trailer

    def _end_of_chunk(self, line: bytes) -> None:
        if line:
            self.error = BadRequest("A chunk is longer than its size")
        self._expected = self._size

    def _trailer(self, line: bytes) -> None:
        self._trailer_left -= len(line)
        if not line:
            self.completed = True
        elif self._trailer_left < 0 or not _FIELD.fullmatch(line):
            self.error = BadRequest("Not a trailer")
