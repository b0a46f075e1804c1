"""One client's TCP connection: waitress's channel with time limits, served by one thread from request to request."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from waitress.adjustments import Adjustments
from waitress.channel import ClientDisconnected
from waitress.task import Task

from connmgr.api.parking import Parked
from connmgr.daemon.memory import LARGE_BLOCK_BYTES
from connmgr.daemon.parser import Parser, Uploads
from connmgr.daemon.rejection import RejectTask, error_of
from connmgr.daemon.resumable import ResumableTask
from connmgr.daemon.sending import SendingChannel
from connmgr.errors import TransferFailed
from connmgr.fs.inflow import Inflow

STALL_SECONDS = 60.0
"""A client that reads nothing of its response, or sends nothing of its request, for this long is gone."""

KEEP_ALIVE_SECONDS = 0.02
"""The answering thread waits this long for the next request, which saves handing it to another thread."""

IDLE_SECONDS = 120.0
LINGER_SECONDS = 5.0
UPLOAD_BYTES = LARGE_BLOCK_BYTES - 4096
"""Bytes of an upload received at once, just below the size that the C library returns to the system."""


class Server(Protocol):
    """The parts of the server that a channel uses."""

    trusted: Callable[[str], bool]
    uploads: Uploads
    keep_alive_threads: threading.BoundedSemaphore

    @property
    def crowded(self) -> bool: ...
    def add_task(self, channel: Channel) -> None: ...
    def park(self, channel: Channel, parked: Parked) -> int: ...
    def leave(self, place: int) -> None: ...
    def pull_trigger(self) -> None: ...


class Channel(SendingChannel):
    """Closes a client that is silent for too long, unless it waits for its answer.

    A thread owns the channel while it answers, and :data:`KEEP_ALIVE_SECONDS` longer. At all other times the main
    thread owns it, and waits for all clients at once.
    """

    server: Server  # type: ignore[assignment] # waitress declares a smaller one
    request: Parser | None
    requests: list[Parser]
    rejected = False
    keeps_alive = False
    """Whether an answering thread owns the channel, and receives its requests."""

    parked: Parked | None = None
    """What the request that is to be answered first waits for without a thread."""

    handed_over = False
    """Whether the client's socket belongs to a stream, and this is to let go of it."""

    _place = -1
    """Where the server keeps it while it waits so."""

    _known = False
    """Whether the client has shown a valid token."""

    _lingering_until = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Held from the socket to the parser: two threads would hand over what they have read in another order.
        self._receiving = threading.Lock()
        super().__init__(*arguments, **options)

    def parser_class(self, adjustments: Adjustments) -> Parser:  # type: ignore[override]
        return Parser(adjustments, self.server.trusted, self.server.uploads)

    def overdue(self, now: float) -> bool:
        """Whether the client exceeded a time limit at ``now``, in seconds since 1970."""
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
        """Whether another client may take its place: it showed no valid token, and waits for no answer."""
        known = self._known or (self.request is not None and self.request.is_trusted)
        return not (known or self.keeps_alive or self.requests)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self.requests or self.total_outbufs_len)

    @property
    def is_alone(self) -> bool:
        """Whether nothing has come behind the request that is being answered."""
        return len(self.requests) == 1 and self.request is None

    def hand_over(self) -> socket.socket:
        """Return the client's socket for whoever made this call to read, write and close; send nothing more here.

        :raises OSError: the client is gone.
        """
        if self.socket is None:
            raise ConnectionResetError
        self.handed_over = True
        return self.socket.dup()

    def readable(self) -> bool:
        if self.handed_over:
            return False
        if self.parked is not None:
            # Who leaves is noticed; of the requests behind it one is read.
            return len(self.requests) == 1
        return bool(self._lingering_until) or not (self.keeps_alive or self.requests or not super().readable())

    def check_client_disconnected(self) -> bool:  # type: ignore[override]
        """Whether the client has gone; only the thread that answers it, and alone reads the socket, calls this."""
        try:
            return self.socket is None or self._broken(0) or not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def service(self) -> None:
        """Answer the requests received, and those that follow at once, unless other clients wait for a thread."""
        self.keeps_alive = True
        try:
            while self._answer(self.requests[0]):
                if self.server.crowded or not (self.requests or self._next_arrives()):
                    break
        finally:
            self.last_activity = time.time()
            self.keeps_alive = False
            if self.parked is not None:
                self._wait(self.parked)
            elif self.requests:
                self.server.add_task(self)
            self.server.pull_trigger()

    def _wait(self, parked: Parked) -> None:
        self._place = self.server.park(self, parked)
        parked.begin(lambda: self.resume(parked))

    def resume(self, parked: Parked) -> None:
        """Answer the request again that waits as ``parked``, if it still does; safe in any thread, at any time."""
        with self.requests_lock:  # type: ignore[attr-defined]
            if self.parked is not parked:
                return
            self.parked = None
        self.server.leave(self._place)
        parked.end()
        self.server.add_task(self)

    def _answer(self, request: Parser) -> bool:
        """Answer ``request``; return False if it waits without a thread instead."""
        kind: Any = RejectTask if request.error else ResumableTask
        task: Task = kind(self, request)
        self._header = None
        self._awaits_reader = False
        self._known = self._known or request.is_trusted
        task.close_on_finish = not self.connected
        try:
            if self.connected:
                task.service()
                self.parked = getattr(task, "parked", None)
                if self.parked is None and not self.handed_over:
                    self._send_header()
        except ClientDisconnected:
            task.close_on_finish = True
        except BaseException:
            # The application answers its own errors: this response broke off, and the request is not answered again.
            self.logger.exception("The response to %s %s broke off", request.command, request.path)
            task.close_on_finish = True
        if self.parked is not None:
            return False
        if self.handed_over:
            self.requests = []
            # The main thread closes it, which leaves the duplicate as it is.
            self.will_close = True
            return False
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
        return True

    def _awaits_leave(self, request: Parser) -> bool:
        """Whether the client waits for ``100 Continue``, held back by answers to earlier requests."""
        return request.expect_continue and request.headers_finished and not self.sent_continue

    def _next_arrives(self) -> bool:
        """Wait briefly for the next request, if a thread can be spared."""
        if not self.server.keep_alive_threads.acquire(blocking=False):
            return False
        try:
            deadline = time.monotonic() + KEEP_ALIVE_SECONDS
            while not self.requests:
                left = deadline - time.monotonic()
                if left <= 0 or not super().readable() or not self._receive(left):
                    return False
        finally:
            self.server.keep_alive_threads.release()
        return True

    def _receive(self, timeout: float) -> bool:
        """Receive for at most ``timeout`` seconds; the main thread handles an end or an error of the stream."""
        receiving = self.socket
        if receiving is None:
            return False
        poll = select.poll()
        try:
            poll.register(receiving, select.POLLIN)
            if not poll.poll(timeout * 1000):
                return False
        except (OSError, ValueError):
            return False
        with self._receiving:
            try:
                data = receiving.recv(self._receive_bytes)
            except OSError:
                return False
            self.last_activity = time.time()
            return bool(self.received(data))

    def received(self, data: bytes) -> bool:
        took = bool(super().received(data))
        if self.request is not None and self.request.inflow is not None:
            self._begin_inflow(self.request, self.request.inflow)
        return took

    def _begin_inflow(self, request: Parser, inflow: Inflow) -> None:
        """Have a request answered whose body is used as it arrives, unless others are to be answered first."""
        with self.requests_lock:  # type: ignore[attr-defined]
            if self.requests:
                return
            inflow.more = partial(self._receive_body, request)
            self.requests.append(request)
            self.request = None
            self.sent_continue = False
        self.server.add_task(self)

    def _receive_body(self, request: Parser) -> bool:
        """Receive more of the body of ``request``, which this thread answers; return False if it is whole.

        :raises ConnmgrError: the body is malformed, the client left, or it sent nothing for :data:`STALL_SECONDS`.
        """
        if request.completed:
            return False
        data = self._next_data(STALL_SECONDS)
        if not data:
            raise TransferFailed("The request ended before its body did.")
        with self._receiving:
            rest = data[request.received(data) :]
        if request.error is not None:
            raise error_of(request)
        if rest:
            self.received(rest)
        return True

    def _next_data(self, timeout: float) -> bytes:
        """Wait up to ``timeout`` seconds for what the client sends next, and return it; nothing at its end."""
        receiving = self.socket
        poll = select.poll()
        try:
            if receiving is None:
                return b""
            poll.register(receiving, select.POLLIN)
            if not poll.poll(timeout * 1000):
                raise TransferFailed(f"Nothing more of the request's body came for {timeout:g} s.")
            data = receiving.recv(UPLOAD_BYTES)
        except (OSError, ValueError):
            return b""
        self.last_activity = time.time()
        return data

    @property
    def _receive_bytes(self) -> int:
        return UPLOAD_BYTES if self.request is not None and self.request.is_upload else self.adj.recv_bytes

    def recv(self, buffer_size: int) -> bytes:
        return bytes(super().recv(max(buffer_size, self._receive_bytes)))

    def handle_read(self) -> None:
        with self._receiving:
            # The main thread looked at many sockets. Since then a thread may have answered this client, and read on.
            if self.keeps_alive:
                return
            try:
                data = self.recv(self.adj.recv_bytes)
            except BlockingIOError:
                return
            except OSError:
                self.handle_close()
                return
            if self._lingering_until:
                return
            if data:
                self.last_activity = time.time()
                self.received(data)
            else:
                self.connected = False

    def handle_write(self) -> None:
        # A refused request may still be arriving. If we closed now, the kernel would send a reset, and the client would
        # lose our answer. So we close our half only, and discard what arrives for a while.
        if not (self.close_when_flushed and self.rejected):
            super().handle_write()
            return
        self.close_when_flushed = False
        super().handle_write()
        if self.total_outbufs_len:
            self.close_when_flushed = True
        elif self.connected:
            self._linger()

    def handle_close(self) -> None:
        # Frees what was received of an incomplete request.
        if self.request is not None:
            self.request.close()
        if self.parked is not None:
            self.server.leave(self._place)
            self.parked.end()
        super().handle_close()

    def _linger(self) -> None:
        self._lingering_until = time.time() + LINGER_SECONDS
        try:
            if self.socket is not None:
                self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.handle_close()
