"""Reads one HTTP request: waitress's parser, with limits on time and on what strangers may send."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

from waitress.adjustments import Adjustments
from waitress.buffers import OverflowableBuffer
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import BadRequest

from connmgr.daemon.framing import ChunkedBody, check_head, has_bare_lf
from connmgr.fs.spool import Spool

RECEIVE_SECONDS = 20.0
RECEIVE_RATE = 64 * 1024
"""A request must arrive within so many seconds, and one more for each so many bytes of its body."""

STRANGERS_BODY = 64 * 1024
"""The bytes of a body that are taken from a client without a valid token: enough for a handshake."""


@dataclass(frozen=True)
class Uploads:
    """The path whose request bodies are files, what makes the spool of one, and how many bytes it may have."""

    path: str
    spool: Callable[[], Spool]
    max_bytes: int


class Parser(HTTPRequestParser):
    """Reads one request; the body of a client that is not ``trusted`` must be small, an upload's goes to its spool."""

    # What a request has that is no HTTP, or whose header is too large to be looked at.
    command = "-"  # type: ignore[assignment]
    path = ""
    request_uri = ""
    query = ""
    url_scheme = "http"

    header_read = False
    """Whether the header is whole and valid, so that it tells what was asked for, and by whom."""

    is_trusted = False
    """Whether it bears a valid token."""

    is_upload = False
    """Whether the body goes to a spool."""

    def __init__(self, adjustments: Adjustments, trusted: Callable[[str], bool], uploads: Uploads) -> None:
        super().__init__(adjustments)
        self.began = time.time()
        self._trusted = trusted
        self._uploads = uploads

    def parse_header(self, header_plus: bytes) -> None:
        if self.header_bytes_received >= self.adj.max_request_header_size:
            # What waitress has put in the place of this header would pass for what the client asked for.
            return
        check_head(header_plus)
        try:
            super().parse_header(header_plus)
        except ValueError as error:
            # Of a length with thousands of digits, or of an address in brackets that is none.
            raise ParsingError(str(error)) from error
        self.header_read = True
        if self.chunked:
            self.body_rcv = ChunkedBody(OverflowableBuffer(self.adj.inbuf_overflow))  # type: ignore[assignment]
        self.is_trusted = self._trusted(self.headers.get("AUTHORIZATION", ""))
        if not self.is_trusted:
            self._limit_body(min(self.adj.max_request_body_size, STRANGERS_BODY + 1))
        elif self.path == self._uploads.path and self.body_rcv is not None:
            self._limit_body(self._uploads.max_bytes + 1)
            self.is_upload = True
            self.body_rcv.buf = self._uploads.spool()  # type: ignore[assignment]

    def _limit_body(self, size: int) -> None:
        self.adj = copy.copy(self.adj)
        self.adj.max_request_body_size = size

    def received(self, data: bytes) -> int:
        consumed: int = super().received(data)
        if not self.headers_finished and not self.completed and has_bare_lf(self.header_plus):
            # Its end may never come: whoever ends lines so sees no reason to send more.
            self.error = BadRequest("A header line ends without CR")
            self.completed = True
        # Otherwise a request that is complete or refused already would be told to continue, and be waited for.
        if self.completed:
            self.expect_continue = False
        return consumed

    @property
    def overdue_at(self) -> float:
        return self.began + RECEIVE_SECONDS + self.body_bytes_received / RECEIVE_RATE
