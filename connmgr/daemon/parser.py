"""Reads one HTTP request: waitress's parser with time limits, and tighter limits for unauthenticated clients."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from waitress.adjustments import Adjustments
from waitress.buffers import OverflowableBuffer
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import BadRequest

from connmgr.api.body import BYTES
from connmgr.api.parking import Turns
from connmgr.daemon.framing import ChunkedBody, check_head, has_bare_lf
from connmgr.fs.inflow import Inflow
from connmgr.fs.spool import Spool

RECEIVE_SECONDS = 20.0
"""Time for a whole request to arrive, apart from the extension for its body."""

RECEIVE_BYTES_PER_SECOND = 64 * 1024
"""Body bytes that extend the time for a request by one second."""

STRANGER_BODY_BYTES = 64 * 1024
"""Bytes of a body accepted without a valid token: enough for a handshake."""


@dataclass(frozen=True)
class Uploads:
    """The place of request bodies that are files: a ``spool`` each at ``path``, at most ``max_bytes`` long.

    At the paths in ``streamed`` bodies are used as they arrive, and may have any length; at those in ``fed`` only
    bodies of the type :data:`BYTES`.
    """

    path: str
    spool: Callable[[], Spool]
    max_bytes: int
    streamed: frozenset[str] = frozenset()
    fed: frozenset[str] = frozenset()

    def stream(self, path: str, content_type: str) -> bool:
        """Whether a body of ``content_type`` for ``path`` is used as it arrives."""
        if path in self.fed:
            return content_type.partition(";")[0].strip().lower() == BYTES
        return path in self.streamed


class Parser(HTTPRequestParser):
    """Reads one request; an upload goes to its spool, and a client that is not ``trusted`` may send little."""

    # Defaults for a request that is not HTTP, or whose header is too large to parse.
    command = "-"  # type: ignore[assignment]
    path = ""
    request_uri = ""
    query = ""
    url_scheme = "http"

    header_read = False
    """Whether the header is complete and valid, so that path and credentials are known."""

    is_trusted = False
    """Whether it has a valid token."""

    is_upload = False
    """Whether the body is a file."""

    inflow: Inflow | None = None
    """The body, if it is used as it arrives."""

    def __init__(self, adjustments: Adjustments, trusted: Callable[[str], bool], uploads: Uploads) -> None:
        super().__init__(adjustments)
        self.began = time.time()
        self.turns = Turns()
        self._trusted = trusted
        self._uploads = uploads

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
        self.header_read = True
        if self.chunked:
            self.body_rcv = ChunkedBody(OverflowableBuffer(self.adj.inbuf_overflow))  # type: ignore[assignment]
        self.is_trusted = self._trusted(self.headers.get("AUTHORIZATION", ""))
        if not self.is_trusted:
            self._limit_body(min(self.adj.max_request_body_size, STRANGER_BODY_BYTES + 1))
        elif self.path == self._uploads.path and self.body_rcv is not None:
            self._limit_body(self._uploads.max_bytes + 1)
            self.is_upload = True
            self.body_rcv.buf = self._uploads.spool()  # type: ignore[assignment]
        elif self.body_rcv is not None and self._uploads.stream(self.path, self.headers.get("CONTENT_TYPE", "")):
            self._limit_body(sys.maxsize)
            self.is_upload = True
            # A request that waits without a thread is read for the next one, and its body is not.
            self.turns = Turns(resumes=False)
            self.inflow = self.body_rcv.buf = Inflow()  # type: ignore[assignment]

    def _limit_body(self, size: int) -> None:
        self.adj = copy.copy(self.adj)
        self.adj.max_request_body_size = size

    def received(self, data: bytes) -> int:
        consumed: int = super().received(data)
        if not self.headers_finished and not self.completed and has_bare_lf(self.header_plus):
            # A client that ends lines without CR may consider the header complete and wait forever.
            self.error = BadRequest("A header line ends without CR")
            self.completed = True
        # waitress would send 100 Continue for a request that is complete or refused.
        if self.completed:
            self.expect_continue = False
        return consumed

    @property
    def is_whole(self) -> bool:
        """Whether the whole request has arrived and was accepted."""
        return self.completed and self.error is None

    @property
    def overdue_at(self) -> float:
        return self.began + RECEIVE_SECONDS + self.body_bytes_received / RECEIVE_BYTES_PER_SECOND
