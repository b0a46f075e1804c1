"""Reads one HTTP request: waitress's parser with time limits, and tighter limits for unauthenticated clients.

The length of a request is checked by RFC 9112, because an ambiguous one could hide one request in another.
"""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from waitress.adjustments import Adjustments
from waitress.buffers import OverflowableBuffer
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import BadRequest

from connmgr.api.auth import Caller
from connmgr.api.body import BYTES
from connmgr.errors import Busy, ConnmgrError, InvalidRequest
from connmgr.fs.bodies import ArrivingBody, BlobSpool
from connmgr.shares import STRANGER, Shares
from connmgr.suspension import Continuation

RECEIVE_SECONDS = 20.0
"""Time for a whole request to arrive, apart from the extension for its body."""

RECEIVE_BYTES_PER_SECOND = 64 * 1024
"""Body bytes that extend the time for a request by one second."""

SMALL_BODY_BYTES = 64 * 1024
"""Bytes of a body accepted without a valid token, and where no content is expected: enough for a handshake."""

LINE_BYTES = 1024
"""Longest line with the size of a chunk."""

EMPTY_LINE_BYTES = 64
"""Most bytes of empty lines before a request."""

TRAILER_BYTES = 8 * 1024
"""Most bytes of the fields after the last chunk."""

NO_TARGET = (
    "The target of a request is a path such as /daemon/version, or an http URL with one: without a second slash at its "
    "beginning, an encoded slash or a fragment."
)

_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_HOST = re.compile(rb"^host:", re.IGNORECASE | re.MULTILINE)
_START = re.compile(rb"[^\x00-\x1f\x7f]+ HTTP/1\.[01][ \t]*")
_PATH = r"/(?!/)(?:(?!%2f)[^?#])*"
_TARGET = re.compile(rf"(?:{_PATH}|http://[^/?#]+(?:{_PATH})?)(?:\?[^#]*)?", re.IGNORECASE)
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_EXTENSION = rb"[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:%b)*" % _EXTENSION)
_FIELD = re.compile(_TOKEN + rb":[^\x00-\x08\x0a-\x1f\x7f]*")
_BLANKS = (b" ", b"\t", b"\v", b"\f")


def _anybody(_caller: Caller, _path: str) -> bool:
    return True


@dataclass(frozen=True)
class Bodies:
    """The limits of request bodies, and the place of those that are files: a ``spool`` each at ``path``,
    for the holder of a share or None.

    A spool has at most ``max_bytes``. At the paths in ``streamed`` bodies are used as they arrive, and may have any
    length; at those in ``fed`` only bodies of the type :data:`BYTES`. All others are kept in memory, as far as
    ``shares`` of it allow; those over :data:`SMALL_BODY_BYTES` are accepted only where ``allows`` says that this caller
    may send content to a path.
    """

    path: str
    spool: Callable[[str | None], BlobSpool]
    max_bytes: int
    shares: Shares
    streamed: frozenset[str] = frozenset()
    fed: frozenset[str] = frozenset()
    allows: Callable[[Caller, str], bool] = _anybody

    def stream(self, path: str, content_type: str) -> bool:
        """Whether a body of ``content_type`` for ``path`` is used as it arrives."""
        if path in self.fed:
            return content_type.partition(";")[0].strip().lower() == BYTES
        return path in self.streamed


# h11 was measured in place of waitress's parser: 60 to 70 µs of CPU for a request and its response, against 20 to 30.
# Limits, uploads and slow clients would still have to be written.
class RequestParser(HTTPRequestParser):
    """Reads one request; an upload goes to its spool, and a client that ``sender_of`` does not know may send little.

    ``sender_of`` returns the sender by its Authorization header, and raises :class:`Busy` to refuse it.
    """

    # Defaults for a request that is not HTTP, or whose header is too large to parse.
    command = "-"  # type: ignore[assignment]
    path = ""
    request_uri = "-"
    query = ""
    url_scheme = "http"

    header_read = False
    """Whether the header is complete and valid, so that an endpoint and credentials are known."""

    caller: Caller | None = None
    """The sender, if it has a valid token."""

    refusal: ConnmgrError | None = None
    """Why the daemon refuses it, in more detail than that it is no valid HTTP; None without such a reason."""

    is_upload = False
    """Whether the body is a file."""

    awaited = 0.0
    """Seconds for which a thread waited for its body."""

    inflow: ArrivingBody | None = None
    """The body, if it is used as it arrives."""

    _empty_line_bytes = 0
    _charged = 0
    """Bytes of the body counted in the shares."""

    def __init__(self, adjustments: Adjustments, sender_of: Callable[[str], Caller | None], bodies: Bodies) -> None:
        super().__init__(adjustments)
        self.began = time.time()
        self.continuation = Continuation()
        self._sender_of = sender_of
        self._bodies = bodies

    def parse_header(self, header_plus: bytes) -> None:
        if self.header_bytes_received >= self.adj.max_request_header_size:
            # waitress replaced the header; parsing the replacement would invent a request.
            return
        check_head(header_plus)
        try:
            super().parse_header(header_plus)
        except ValueError as error:
            # Raised for a length of thousands of digits, or an invalid address in brackets.
            raise ParsingError(str(error)) from error
        if not _TARGET.fullmatch(self.request_uri):
            # waitress, Flask and proxies read such targets each in their own way: another path than was asked for would
            # be answered, and be in the log.
            self._refuse(InvalidRequest(NO_TARGET))
            return
        self.header_read = True
        if not has_one_host(header_plus):
            # The application says so. The connection closes: another program may see no request here, and so take what
            # follows for something else.
            self.error = BadRequest("Not exactly one Host header")
            self.completed = True
            return
        if self.chunked:
            self.body_rcv = ChunkedBody(OverflowableBuffer(self.adj.inbuf_overflow))  # type: ignore[assignment]
        try:
            self.caller = self._sender_of(self.headers.get("AUTHORIZATION", ""))
        except Busy as refusal:
            self._refuse(refusal)
            return
        self._place_body()

    def _place_body(self) -> None:
        """Decide how long the body may be that follows, and where it goes."""
        bodies = self._bodies
        if self.caller is None or not bodies.allows(self.caller, self.path):
            # Most bodies announce that they are small; limiting them would cost more than reading them.
            if self.chunked or self.content_length > SMALL_BODY_BYTES:
                self._limit_body(min(self.adj.max_request_body_size, SMALL_BODY_BYTES + 1))
        elif self.path == bodies.path and self.body_rcv is not None:
            self._limit_body(bodies.max_bytes + 1)
            self.is_upload = True
            self.body_rcv.buf = bodies.spool(self.caller.holder)  # type: ignore[assignment]
        elif self.body_rcv is not None and bodies.stream(self.path, self.headers.get("CONTENT_TYPE", "")):
            self._limit_body(sys.maxsize)
            self.is_upload = True
            # While a request is suspended, the main thread reads what comes as the next request: here the body.
            self.continuation = Continuation(resumes=False)
            self.inflow = self.body_rcv.buf = ArrivingBody()  # type: ignore[assignment]

    def _refuse(self, refusal: ConnmgrError) -> None:
        self.refusal = refusal
        # Of waitress's errors any will do: the answer is made of ours.
        self.error = BadRequest(refusal.message)
        self.completed = True

    def _limit_body(self, size: int) -> None:
        self.adj = copy.copy(self.adj)
        self.adj.max_request_body_size = size

    def _begins_with_blank(self, data: bytes) -> bool:
        return (self.header_plus.lstrip(b"\r\n") or data.lstrip(b"\r\n"))[:1] in _BLANKS

    def received(self, data: bytes) -> int:
        empty = 0
        if not (self.headers_finished or self.header_plus):
            # waitress takes each two of them for a request and begins anew: quadratic work for the thread of all.
            empty = len(_EMPTY_LINES.match(data)[0])  # type: ignore[index] # it matches anything
            self._empty_line_bytes += empty
            if self._empty_line_bytes > EMPTY_LINE_BYTES:
                self.error = BadRequest("Too many empty lines")
                self.completed = True
                return len(data)
            data = data[empty:]
        return empty + self._received(data)

    def _received(self, data: bytes) -> int:
        if not self.headers_finished and self._begins_with_blank(data):
            # waitress passes over any blank; RFC 9112, section 2.2, over empty lines alone.
            self.error = BadRequest("A request begins with a blank")
            self.completed = True
            return len(data)
        consumed: int = super().received(data)
        if self.body_bytes_received > SMALL_BODY_BYTES and self._is_kept:
            self._charge(self.body_bytes_received - self._charged)
        if not self.headers_finished and not self.completed and has_bare_lf(self.header_plus):
            # A client that ends lines without CR may consider the header complete and wait forever.
            self.error = BadRequest("A header line ends without CR")
            self.completed = True
        # waitress would send 100 Continue for a request that is complete or refused.
        if self.completed:
            self.expect_continue = False
        return consumed

    @property
    def _is_kept(self) -> bool:
        """Whether what arrives now stays in memory: a body that is not used as it arrives, or the line before input."""
        if self.inflow is None:
            return not self.is_upload
        return self.path in self._bodies.fed and not self.inflow.has_line

    def _charge(self, size: int) -> None:
        """Count ``size`` more bytes of the body in memory, or refuse the request."""
        if self._bodies.shares.take(self.holder, size):
            self._charged += size
        elif self.error is None:
            self._refuse(Busy("Too many bytes of requests are under way; send them one after the other."))

    def close(self) -> None:
        if self._charged:
            self._bodies.shares.give_back(self.holder, self._charged)
            self._charged = 0
        super().close()

    @property
    def holder(self) -> str | None:
        """Whose share of the daemon it uses (:mod:`connmgr.shares`)."""
        return STRANGER if self.caller is None else self.caller.holder

    @property
    def is_whole(self) -> bool:
        """Whether the whole request has arrived and was accepted."""
        return self.completed and self.error is None

    @property
    def overdue_at(self) -> float:
        """The time, in seconds since 1970, at which it has taken too long to arrive."""
        return self.began + RECEIVE_SECONDS + self.body_bytes_received / RECEIVE_BYTES_PER_SECOND


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


def has_one_host(head: bytes) -> bool:
    """Whether a header has exactly one field ``Host``, without which no request is valid (RFC 9112, section 3.2)."""
    return len(_HOST.findall(head)) == 1


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
        size = _SIZE.fullmatch(line)
        if not size:
            self.error = BadRequest("Not the size of a chunk")
            return
        self._chunk_left = int(size[1], 16)
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
