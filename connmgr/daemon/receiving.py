"""Receives the requests of one client, either in the thread that answers it or in the main thread."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

from waitress.adjustments import Adjustments

from connmgr.api.auth import Caller
from connmgr.daemon.memory import LARGE_BLOCK_BYTES
from connmgr.daemon.parser import Bodies, RequestParser
from connmgr.daemon.rejection import error_of
from connmgr.daemon.sending import SendingChannel
from connmgr.errors import TransferFailed
from connmgr.fs.bodies import ArrivingBody
from connmgr.shares import Computing, Rests, waiting

STALL_SECONDS = 60.0
"""A client that reads nothing of its response, or sends nothing of its request, for this long is gone."""

INFLOW_SECONDS = 20.0
INFLOW_BYTES_PER_SECOND = 8 * 1024
"""A body that is used as it arrives may make its thread wait for :data:`INFLOW_SECONDS` in all, and a second longer for
each of these bytes. A slot and a thread belong to it meanwhile."""

KEEP_ALIVE_SECONDS = 0.02
"""The answering thread waits this long for the next request: handing that to another thread costs more than Flask."""

RECEIVING_REST = 4.0
SHORTEST_REST_SECONDS = 0.001
"""The main thread, which serves all clients, spends at most a fifth of its time with what those of a token send."""

UPLOAD_BYTES = LARGE_BLOCK_BYTES - 4096
"""Bytes of an upload received at once, just below the size that the C library returns to the system."""


class ReceivingServer(Protocol):
    """The parts of the server that receiving uses."""

    bodies: Bodies
    computing: Computing
    keep_alive_threads: threading.BoundedSemaphore
    rests: Rests

    def add_task(self, channel: Any) -> None: ...


class ReceivingChannel(SendingChannel):
    """waitress's channel, whose requests are also received by the thread that answers them."""

    server: ReceivingServer  # type: ignore[assignment] # waitress declares a smaller one
    request: RequestParser | None
    requests: list[RequestParser]
    keeps_alive = False
    """Whether an answering thread owns the channel and receives its requests."""

    handed_over: socket.socket | None = None
    """The client's socket if it now belongs to a stream, so that this channel must not use it."""

    rests_until = 0.0
    """The main thread reads nothing from a token's client until this time of ``time.monotonic``."""

    _lingering_until = 0.0
    """Arriving data is discarded until this time, in seconds since 1970; 0 for no discarding."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Held from the socket to the parser: otherwise two threads could pass their data on in the wrong order.
        self._receiving = threading.Lock()
        super().__init__(*arguments, **options)

    def parser_class(self, adjustments: Adjustments) -> RequestParser:  # type: ignore[override]
        return RequestParser(adjustments, self._sender_of, self.server.bodies)

    @property
    def holder(self) -> str | None:
        """Whose share of the threads its oldest request uses (:mod:`connmgr.shares`)."""
        raise NotImplementedError

    def _sender_of(self, authorization: str) -> Caller | None:
        """Return the sender of a request by its Authorization header; raise :class:`connmgr.errors.Busy`."""
        raise NotImplementedError

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
        holder = self.holder
        # The turn comes first: the main thread must not wait for it behind the lock.
        with self.server.computing.turn(holder) if holder is not None else nullcontext(), self._receiving:
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

    def _begin_inflow(self, request: RequestParser, inflow: ArrivingBody) -> None:
        """Let a request be answered whose body is used as it arrives, unless earlier requests wait for answers."""
        with self.requests_lock:  # type: ignore[attr-defined]
            if self.requests:
                return
            inflow.more = partial(self._receive_body, request)
            self.requests.append(request)
            self.request = None
            self.sent_continue = False
        self.server.add_task(self)

    def _receive_body(self, request: RequestParser) -> bool:
        """Receive more of the body of ``request``, which this thread answers; return False if it is whole.

        :raises ConnmgrError: the body is malformed, the client left, or it sends too slowly.
        """
        if request.completed:
            return False
        until = None if request.inflow is None else request.inflow.until
        if until is None:
            allowed = INFLOW_SECONDS + request.body_bytes_received / INFLOW_BYTES_PER_SECOND - request.awaited
            began = time.monotonic()
            data: bytes | None = self._next_data(min(allowed, INFLOW_SECONDS))
            request.awaited += time.monotonic() - began
        else:
            # The input of a running command comes when it comes.
            data = self._next_data_until(until)
        if data is None:
            return False
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
        """Wait up to ``timeout`` seconds for the client's next data and return it; empty at the end."""
        receiving = self.socket
        poll = select.poll()
        try:
            if receiving is None:
                return b""
            poll.register(receiving, select.POLLIN)
            with waiting():
                has_come = bool(poll.poll(max(0.0, timeout) * 1000))
            if not has_come:
                raise TransferFailed(
                    f"The request's body came too slowly: it may make the daemon wait for {INFLOW_SECONDS:g} s at a "
                    f"time, and has at least {INFLOW_BYTES_PER_SECOND // 1024} KiB/s."
                )
        except (OSError, ValueError):
            return b""
        return self._received_now(receiving)

    def _next_data_until(self, stop: int) -> bytes | None:
        """Wait for the client's next data and return it; empty at the end, None if ``stop`` is readable before."""
        receiving = self.socket
        poll = select.poll()
        try:
            if receiving is None:
                return b""
            poll.register(receiving, select.POLLIN)
            poll.register(stop, select.POLLIN)
            with waiting():
                happened = poll.poll()
            if any(descriptor == stop for descriptor, _ in happened):
                return None
        except (OSError, ValueError):
            return b""
        return self._received_now(receiving)

    def _received_now(self, receiving: Any) -> bytes:
        try:
            data: bytes = receiving.recv(UPLOAD_BYTES)
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
        holder, began = self.holder, time.thread_time()
        self._read_once()
        rest = self.server.rests.after(holder or None, time.thread_time() - began)
        self.rests_until = time.monotonic() + rest if rest >= SHORTEST_REST_SECONDS else 0.0

    def _read_once(self) -> None:
        with self._receiving:
            # The main thread polled many sockets. Since then a thread may have answered this client, and read on, or
            # handed its socket over to a stream, whose data these would be.
            if self.keeps_alive or self.handed_over is not None:
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
