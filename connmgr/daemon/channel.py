"""One client's TCP connection: waitress's, with limits on time and with errors in our own shape."""

from __future__ import annotations

import copy
import json
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from waitress.adjustments import Adjustments
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.task import ErrorTask

from connmgr import errors
from connmgr.api.errors import body_of
from connmgr.fs.blobs import Spool

if TYPE_CHECKING:
    from connmgr.daemon.server import Server

RECEIVE_SECONDS = 20.0
RECEIVE_RATE = 64 * 1024
"""A request must arrive within so many seconds, and one more for each so many bytes of its body."""

STALL_SECONDS = 60.0
"""A client that reads nothing of its response for so long is gone."""

IDLE_SECONDS = 120.0
LINGER_SECONDS = 5.0
DIRECT = 32 * 1024
"""Bytes from which on a piece of a response is not put into waitress's buffers."""

ROOM_SECONDS = 1.0

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

    path: str

    def __init__(self, adjustments: Adjustments, trusted: Callable[[str], bool], uploads: Uploads) -> None:
        super().__init__(adjustments)
        self.began = time.time()
        self._trusted = trusted
        self._uploads = uploads

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        if not self._trusted(self.headers.get("AUTHORIZATION", "")):
            self._limit_body(min(self.adj.max_request_body_size, STRANGERS_BODY + 1))
        elif self.path == self._uploads.path and self.body_rcv is not None:
            self._limit_body(self._uploads.max_bytes + 1)
            self.body_rcv.buf = self._uploads.spool()  # type: ignore[assignment]

    def _limit_body(self, size: int) -> None:
        self.adj = copy.copy(self.adj)
        self.adj.max_request_body_size = size

    def received(self, data: bytes) -> int:
        consumed: int = super().received(data)
        # Otherwise a request that is complete or refused already would be told to continue, and be waited for.
        if self.completed:
            self.expect_continue = False
        return consumed

    @property
    def overdue_at(self) -> float:
        return self.began + RECEIVE_SECONDS + self.body_bytes_received / RECEIVE_RATE


class RejectTask(ErrorTask):
    """Answers a request that the HTTP parser refused."""

    channel: Channel
    request: Parser  # type: ignore[assignment]

    def execute(self) -> None:
        refusal = self.request.error
        error = _as_error(refusal.code if refusal else 500)
        body = json.dumps(body_of(error)).encode()
        self.status = f"{error.status} {HTTPStatus(error.status).phrase}"
        self.response_headers = [
            ("Content-Type", "application/json"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        self.set_close_on_finish()
        self.channel.rejected = True
        self.content_length = len(body)
        self.write(body)


def _as_error(status: int) -> errors.ConnmgrError:
    if status == errors.BodyTooLarge.status:
        return errors.BodyTooLarge(
            f"The request body is too large; without a valid token, beyond {STRANGERS_BODY // 1024} KiB."
        )
    if status == errors.HeadersTooLarge.status:
        return errors.HeadersTooLarge("The header of the request is too large.")
    if status < errors.OperationError.status or status == 501:
        return errors.InvalidRequest("The request is not valid HTTP, or uses a part of it that is not supported.")
    return errors.InternalError("An internal error occurred; the daemon's log says more.")


class Channel(HTTPChannel):
    """Closes what stays silent for too long, but for a client that waits for its answer."""

    error_task_class = RejectTask
    server: Server
    request: Parser | None
    rejected = False
    _lingering_until = 0.0
    _sending = False

    def parser_class(self, adjustments: Adjustments) -> Parser:  # type: ignore[override]
        """Make the parser of one request, as waitress does."""
        return Parser(adjustments, self.server.trusted, self.server.uploads)

    def overdue(self, now: float) -> bool:
        """Whether the client has had its time, at ``now`` in seconds since 1970."""
        if self._lingering_until:
            return now > self._lingering_until
        if self.total_outbufs_len or self._sending:
            return now > self.last_activity + STALL_SECONDS
        if self.requests:
            return False
        if self.request is not None:
            return now > self.request.overdue_at
        return now > self.last_activity + IDLE_SECONDS

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self.requests or self.total_outbufs_len)

    def readable(self) -> bool:
        return bool(self._lingering_until) or bool(super().readable())

    def handle_read(self) -> None:
        if not self._lingering_until:
            super().handle_read()
            return
        try:
            self.recv(self.adj.recv_bytes)
        except OSError:
            self.handle_close()

    def handle_write(self) -> None:
        # A refused request may still be arriving. Closing at once would have the kernel answer it with a reset, which
        # takes our answer away from the client; so only our half is closed, and what comes is thrown away for a while.
        if not (self.close_when_flushed and self.rejected):
            super().handle_write()
            return
        self.close_when_flushed = False
        super().handle_write()
        if self.total_outbufs_len:
            self.close_when_flushed = True
        elif self.connected:
            self._linger()

    def write_soon(self, data: Any) -> int:
        """Take a piece of the response; a large one is sent by this thread, which saves copies and handing over."""
        if not isinstance(data, bytes) or len(data) < DIRECT:
            return int(super().write_soon(data))
        rest = memoryview(data)
        self.last_activity = time.time()
        self._sending = True
        try:
            while rest := rest[self._send_now(rest) :]:
                self._await_room()
        finally:
            self._sending = False
        return len(data)

    def _send_now(self, data: memoryview) -> int:
        """Send as much of ``data`` as the socket takes, after what waits already."""
        with self.outbuf_lock:
            if not self.connected or self.socket is None:
                raise ClientDisconnected
            if self.total_outbufs_len:
                self._flush_some(do_close=False)  # type: ignore[attr-defined]
            sent = 0 if self.total_outbufs_len else int(self.send(data, do_close=False))  # type: ignore[arg-type]
            if sent:
                self.last_activity = time.time()
            return sent

    def _await_room(self) -> None:
        # The main thread notices a client that is gone, and ends the waiting for one that takes nothing. It may close
        # the socket at any moment; a wait for what has its number then is harmless and short.
        descriptor = self.socket.fileno() if self.socket is not None else -1
        if descriptor >= 0:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll(ROOM_SECONDS * 1000)

    def handle_close(self) -> None:
        # Frees what was received of a request that will never be whole.
        if self.request is not None:
            self.request.close()
        super().handle_close()

    def _linger(self) -> None:
        self._lingering_until = time.time() + LINGER_SECONDS
        try:
            if self.socket is not None:
                self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.handle_close()
