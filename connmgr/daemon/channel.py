"""One client's TCP connection: waitress's, kept by one thread from request to request, and with limits on time."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from waitress.adjustments import Adjustments
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.task import Task, WSGITask

from connmgr.daemon.memory import LARGE_BLOCK
from connmgr.daemon.parser import Parser, Uploads
from connmgr.daemon.rejection import RejectTask

STALL_SECONDS = 60.0
"""A client that reads nothing of its response for so long is gone."""

KEEP_SECONDS = 0.02
"""For how long the thread that has answered waits for the next request, which then need not change threads."""

IDLE_SECONDS = 120.0
LINGER_SECONDS = 5.0
DIRECT = 32 * 1024
"""Bytes from which on a piece of a response is not put into waitress's buffers."""

UPLOAD_BYTES = LARGE_BLOCK - 4096
"""Bytes of an upload that are taken at once: many, but no more than the C library keeps at hand."""

ROOM_SECONDS = 1.0


class Server(Protocol):
    """What a channel needs of the server that it belongs to."""

    trusted: Callable[[str], bool]
    uploads: Uploads
    keepers: threading.BoundedSemaphore

    @property
    def crowded(self) -> bool: ...
    def add_task(self, channel: Channel) -> None: ...
    def pull_trigger(self) -> None: ...


class Channel(HTTPChannel):
    """Closes what stays silent for too long, but for a client that waits for its answer.

    While a request is answered, and :data:`KEEP_SECONDS` longer, the channel belongs to the thread that answers; at all
    other times to the main thread, which waits for all clients at once.
    """

    server: Server  # type: ignore[assignment] # waitress declares its own, which does less
    request: Parser | None
    requests: list[Parser]
    rejected = False
    kept = False
    """Whether a thread that answers has the channel, and looks for requests itself."""

    _known = False
    """Whether the client has ever shown a valid token."""

    _lingering_until = 0.0
    _sending = False
    _header: bytes | None = b""
    """The header of a response, until some of its body is sent with it; None before it."""

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
    def dispensable(self) -> bool:
        """Whether it may be closed for another client: it has shown no valid token, and no request is answered."""
        known = self._known or (self.request is not None and self.request.is_trusted)
        return not (known or self.kept or self.requests)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self.requests or self.total_outbufs_len)

    def readable(self) -> bool:
        return bool(self._lingering_until) or not (self.kept or self.requests or not super().readable())

    def check_client_disconnected(self) -> bool:  # type: ignore[override]
        """Whether the client has gone; asked by the thread that answers it, which alone reads from the socket."""
        try:
            return self.socket is None or not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def service(self) -> None:
        """Answer the requests that have come, and those that follow at once, unless other clients wait for a thread."""
        self.kept = True
        try:
            self._answer(self.requests[0])
            while not self.server.crowded and (self.requests or self._next_arrives()):
                self._answer(self.requests[0])
        finally:
            self.last_activity = time.time()
            self.kept = False
            if self.requests:
                self.server.add_task(self)
            self.server.pull_trigger()

    def _answer(self, request: Parser) -> None:
        kind: Any = RejectTask if request.error else WSGITask
        task: Task = kind(self, request)
        self._header = None
        self._known = self._known or request.is_trusted
        task.close_on_finish = not self.connected
        try:
            if self.connected:
                task.service()
                self._send_header()
        except ClientDisconnected:
            task.close_on_finish = True
        except BaseException:
            # The application answers its own errors: this is a response that broke off. No request is answered twice.
            self.logger.exception("The response to %s %s broke off", request.command, request.path)
            task.close_on_finish = True
        with self.requests_lock:  # type: ignore[attr-defined]
            request.close()
            self.requests.pop(0)
            if task.close_on_finish:
                self.close_when_flushed = True
                for other in self.requests:
                    other.close()
                self.requests = []
            elif not self.requests and self.request is not None and self._awaits_leave(self.request):
                self.send_continue()

    def _awaits_leave(self, request: Parser) -> bool:
        """Whether a client that waits for ``100 Continue`` has not got it, because the answers before came first."""
        return request.expect_continue and request.headers_finished and not self.sent_continue

    def _next_arrives(self) -> bool:
        """Wait a moment for the next request, if a thread can be spared for that."""
        if not self.server.keepers.acquire(blocking=False):
            return False
        try:
            deadline = time.monotonic() + KEEP_SECONDS
            while not self.requests:
                left = deadline - time.monotonic()
                if left <= 0 or not super().readable() or not self._receive(left):
                    return False
        finally:
            self.server.keepers.release()
        return True

    def _receive(self, timeout: float) -> bool:
        """Take what the client sends within ``timeout`` seconds; what is no data is left to the main thread."""
        if self.socket is None:
            return False
        poll = select.poll()
        try:
            poll.register(self.socket, select.POLLIN)
            if not poll.poll(timeout * 1000):
                return False
            data = self.socket.recv(self._receive_bytes)
        except (OSError, ValueError):
            return False
        self.last_activity = time.time()
        return bool(self.received(data))

    @property
    def _receive_bytes(self) -> int:
        return UPLOAD_BYTES if self.request is not None and self.request.is_upload else self.adj.recv_bytes

    def recv(self, buffer_size: int) -> bytes:
        return bytes(super().recv(max(buffer_size, self._receive_bytes)))

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
        """Send a piece of the response; its header goes out together with what follows it.

        What the client does not take at once is left to the main thread, but for large pieces: waiting here saves
        copies and keeps memory bounded.
        """
        if self._header is None:
            self._header = data
        elif len(data) < DIRECT:
            whole, self._header = self._header + data, b""
            sent = self._send_now(memoryview(whole))
            if sent < len(whole):
                super().write_soon(whole[sent:])
        else:
            self._send_header()
            self._send_all(data)
        return len(data)

    def _send_header(self) -> None:
        """Send the header of a response that has no body, or a large one."""
        if self._header:
            self.write_soon(b"")

    def _send_all(self, data: bytes) -> None:
        rest = memoryview(data)
        self.last_activity = time.time()
        self._sending = True
        try:
            while rest := rest[self._send_now(rest) :]:
                self._await_room()
        finally:
            self._sending = False

    def _send_now(self, data: memoryview) -> int:
        """Send as much of ``data`` as the socket takes, after what waits already."""
        with self.outbuf_lock:
            if not self.connected or self.socket is None:
                raise ClientDisconnected
            if self.total_outbufs_len:
                self._flush_some(do_close=False)  # type: ignore[attr-defined]
            if self.total_outbufs_len:
                return 0
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                return 0
            except OSError:
                raise ClientDisconnected from None
            self.last_activity = time.time()
            return sent

    def _await_room(self) -> None:
        # The main thread ends the waiting for a client that takes nothing. It may close the socket at any moment; a
        # wait for what has its number then is harmless and short.
        descriptor = self.socket.fileno() if self.socket is not None else -1
        if descriptor >= 0:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(ROOM_SECONDS * 1000)):
                raise ClientDisconnected

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
