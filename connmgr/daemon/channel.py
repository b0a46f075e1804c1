"""One client's TCP connection: waitress's channel with time limits, served by one thread from request to request.

The main thread polls all channels: it reads requests as they come, sends what answers have left in waitress's buffers,
and closes clients whose time is over. A thread that answers a channel's request owns the channel meanwhile: it sends as
much as it can by itself, and waits a moment for the client's next request, because passing a request between threads
costs more than Flask does.
"""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import cached_property, partial
from io import BytesIO
from typing import Any, Protocol

from waitress.adjustments import Adjustments
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.task import Task, WSGITask

from connmgr import errors
from connmgr.api.auth import Caller
from connmgr.api.body import REFUSAL, Refusal
from connmgr.api.context import CANCELLATION, CONTINUATION, HAND_OVER, PASSED, PEER_UID, ROOM
from connmgr.computing import Computing, Rests, give_way, waiting
from connmgr.daemon import parser
from connmgr.daemon.departures import ClientCancellation, Departures, has_left
from connmgr.daemon.parser import Bodies, RequestParser
from connmgr.daemon.passing import PassingSocket
from connmgr.daemon.process import LARGE_BLOCK_BYTES, Garbage
from connmgr.errors import Busy, TransferFailed
from connmgr.fs.bodies import ArrivingBody
from connmgr.shares import STRANGER
from connmgr.suspension import Suspended

IDLE_SECONDS = 120.0
LINGER_SECONDS = 5.0

ENDED_SECONDS = 5.0
"""The client of a token that has ended is closed after this silence, also amid an answer of which it reads nothing;
until then a request is answered with the reason.
"""

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

STRANGER_BYTES = 4096
"""Bytes received at once from a client that has shown no valid token: the main thread reads what hundreds of them send
in one turn."""

PARSED_AT_ONCE = 2
"""Requests that are parsed ahead, the one that is being answered included. What follows stays as it came: parsed, tiny
requests take many times their size, and the time of the main thread."""

UPLOAD_BYTES = LARGE_BLOCK_BYTES - 4096
"""Bytes of an upload received at once, just below the size that the C library returns to the system."""

DIRECT_BYTES = 32 * 1024
"""Smaller pieces of a response go through waitress's buffers; larger ones are sent directly."""

SEND_BYTES = 256 * 1024
"""Bytes of a response sent at once: the kernel copies them, and meanwhile runs nothing else on this processor."""

POLL_SECONDS = 1.0


class ChannelServer(Protocol):
    """The parts of the server that a channel uses."""

    bodies: Bodies
    computing: Computing
    departures: Departures
    garbage: Garbage
    keep_alive_threads: threading.BoundedSemaphore
    rests: Rests
    sender_of: Callable[[str], Caller | None]
    suspended: SuspendedChannels

    def add_task(self, channel: Any) -> None: ...
    def crowded(self, holder: str | None) -> bool: ...
    def join(self, channel: ClientChannel, holder: str) -> bool: ...
    def leave(self, channel: ClientChannel) -> None: ...
    def pull_trigger(self) -> None: ...


class ClientChannel(HTTPChannel):
    """waitress's channel, which closes a client that is silent for too long, unless it waits for its answer.

    A thread owns the channel while it answers, and :data:`KEEP_ALIVE_SECONDS` longer. At all other times the main
    thread owns it, and polls all clients.
    """

    server: ChannelServer  # type: ignore[assignment] # waitress declares a smaller one
    request: RequestParser | None
    requests: list[RequestParser]

    peer_uid: int | None = None
    """The user of its client at the Unix socket, by the kernel's word: the daemon's, or root."""

    caller: Caller | None = None
    """The sender of its last request with a valid token."""

    counts_for: str | None = None
    """The token in whose share of the connections it is counted."""

    keeps_alive = False
    """Whether an answering thread owns the channel and receives its requests."""

    queued = False
    """Whether its next request has to wait for a thread."""

    gives_way = False
    """Whether it makes room for another client: it is closed once no request of it is being answered."""

    rejected = False
    """Whether it has answered a request that had not arrived whole."""

    suspended: Suspended | None = None
    """What the oldest request waits for without a thread."""

    _unparsed = b""
    """What has come behind :data:`PARSED_AT_ONCE` requests."""

    _place = -1
    """The key of this channel in the server's table of suspended requests."""

    handed_over: socket.socket | None = None
    """The client's socket if it now belongs to a stream, so that this channel must not use it."""

    rests_until = 0.0
    """The main thread reads nothing from a token's client until this time of ``time.monotonic``."""

    _lingering_until = 0.0
    """Arriving data is discarded until this time, in seconds since 1970; 0 for no discarding."""

    _sending = False
    _awaits_reader = False
    """Whether the answer itself waits for its reader between pieces, so that sending a piece need not wait."""

    _header: bytes | None = b""
    """The header of a response until it is sent with the body; None before there is one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Held from the socket to the parser: otherwise two threads could pass their data on in the wrong order.
        self._receiving = threading.Lock()
        super().__init__(*arguments, **options)

    def parser_class(self, adjustments: Adjustments) -> RequestParser:  # type: ignore[override]
        return RequestParser(adjustments, self._sender_of, self.server.bodies)

    def _sender_of(self, authorization: str) -> Caller | None:
        asking = self.server.sender_of(authorization)
        if asking is None:
            return None
        if asking.holder != self.counts_for:
            self.server.leave(self)
            if asking.holder is not None and not self.server.join(self, asking.holder):
                raise Busy("Too many connections of tokens are open; close some first.")
        self.caller = asking
        return asking

    @property
    def holder(self) -> str | None:
        """Whose share of the threads its oldest request uses (:mod:`connmgr.shares`)."""
        asking = self.requests[0].caller if self.requests else self.caller
        if asking is None:
            return STRANGER if self.peer_uid is None else None
        return asking.holder

    @property
    def rank(self) -> int:
        """Who it belongs to: 0 for a client without a valid token, 1 for one with a token, 2 for the owner."""
        if self.caller is None:
            return 0 if self.peer_uid is None else 2
        if self.caller.holder is None:
            return 2
        return 0 if self.caller.ended else 1

    @property
    def is_idle(self) -> bool:
        """Whether it may be closed for another client: it waits for no answer, and does not send for one either.

        The request of a client that showed no valid token is disregarded until it is whole.
        """
        sends = self.request is not None and self.caller is not None
        return not (sends or self.keeps_alive or self.requests)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self.requests or self.total_outbufs_len)

    @property
    def is_alone(self) -> bool:
        """Whether no data has come after the request that is being answered."""
        # waitress queues the channel, whose thread may ask this at once, before it forgets the request that it has read
        # whole; it does both under this lock. Without it the request itself would pass for data behind it.
        with self.requests_lock:  # type: ignore[attr-defined]
            return len(self.requests) == 1 and self.request is None

    def overdue(self, now: float) -> bool:
        """Whether the client exceeded a time limit at ``now``, in seconds since 1970."""
        if self._lingering_until:
            return now > self._lingering_until
        if self.total_outbufs_len or self._sending:
            return now > self.last_activity + (ENDED_SECONDS if self.has_ended_token else STALL_SECONDS)
        if self.requests:
            return False
        if self.request is not None:
            if self.request.is_upload:
                return self.has_ended_token or now > self.request.overdue_at
            return now > min(self.last_activity + parser.RECEIVE_SECONDS, self.request.overdue_at)
        if self.keeps_alive or now <= self.last_activity + (ENDED_SECONDS if self.has_ended_token else IDLE_SECONDS):
            return False
        # A request that has come, and is not read yet, would get a reset instead of its answer.
        return not _has_data(self.socket)

    @property
    def has_ended_token(self) -> bool:
        """Whether the sender of its last valid request may ask nothing any more; its next answer is the last one."""
        return self.caller is not None and self.caller.ended

    # The main thread reads what clients send.

    def readable(self) -> bool:
        if self.handed_over or (self.rests_until and time.monotonic() < self.rests_until):
            return False
        if self.suspended is not None:
            # A leaving client must be noticed, so the socket is read until one more request has come.
            return len(self.requests) == 1
        return bool(self._lingering_until) or not (self.keeps_alive or self.requests or not super().readable())

    def handle_read(self) -> None:
        holder = self.holder
        if wait := self.server.rests.before(holder or None):
            self.rests_until = time.monotonic() + wait
            return
        began = time.thread_time()
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

    def recv(self, buffer_size: int) -> bytes:
        return bytes(super().recv(self._receive_bytes))

    @property
    def _receive_bytes(self) -> int:
        if self.request is not None and self.request.is_upload:
            return UPLOAD_BYTES
        return STRANGER_BYTES if self.holder == STRANGER else int(self.adj.recv_bytes)

    def received(self, data: bytes) -> bool:
        took = bool(data)
        with self.requests_lock:  # type: ignore[attr-defined]
            if self.will_close or self.close_when_flushed:
                return False
            data, self._unparsed = self._unparsed + data, b""
            while data and len(self.requests) < PARSED_AT_ONCE:
                data = data[self._parse(data) :]
            self._unparsed = data
        if self.request is not None and self.request.inflow is not None:
            self._begin_inflow(self.request, self.request.inflow)
        return took

    def _parse(self, data: bytes) -> int:
        """Parse ``data`` up to the end of a request, and return how many bytes that were; the caller holds the lock."""
        if self.request is None:
            self.request = self.parser_class(self.adj)
        request = self.request
        parsed = request.received(data)
        if self._awaits_continue(request) and not self.requests:
            self.send_continue()
        if request.completed:
            self.sent_continue = False
            self.request = None
            if not request.empty:
                self.requests.append(request)
                if len(self.requests) == 1:
                    self.server.add_task(self)
        return parsed

    # A thread answers.

    def service(self) -> None:
        """Answer the requests received, and those that follow at once, unless other clients wait for a thread."""
        self.keeps_alive = True
        if self.queued:
            self.queued = False
            # Nobody waits for the answer any more, and nothing was begun.
            self.connected = self.connected and not has_left(self.socket)
        try:
            # Handing the next request to another thread costs two switches of threads, more than Flask's work for it;
            # a client that sends one command after the other therefore keeps its thread, for 20 ms of silence. Others
            # pay nothing: the thread goes at once where requests of somebody else wait for one.
            answered = True
            while answered:
                holder = self.holder
                with self.server.computing.turn(holder):
                    answered = self._answer(self.requests[0])
                self.server.garbage.collect_if_due(quiet=self.server.computing.is_quiet)
                if answered and (self.server.crowded(holder) or not (self.requests or self._next_arrives())):
                    break
        finally:
            self.last_activity = time.time()
            with self.requests_lock:  # type: ignore[attr-defined]
                # The main thread reads again from here on. waitress queues the channel for the first request that it
                # reads, and this thread for one that is there already. Without the lock a request that the main thread
                # has just read would be both, and two threads would answer it.
                self.keeps_alive = False
                has_more = bool(self.requests)
            if self.suspended is not None:
                self._suspend(self.requests[0], self.suspended)
            elif has_more:
                self.server.add_task(self)
            self.server.pull_trigger()

    def _answer(self, request: RequestParser) -> bool:
        """Answer ``request``; return False if it is suspended instead, or the socket was handed over."""
        kind: Any = RejectTask if request.error else ResumableTask
        task: Task = kind(self, request)
        self._header = None
        self._awaits_reader = False
        task.close_on_finish = not self.connected
        if self.connected:
            self._carry_out(task, request)
        if self.suspended is not None:
            return False
        if self.handed_over:
            self.requests = []
            # The main thread closes the original descriptor; the duplicate stays open.
            self.will_close = True
            return False
        self._finish(request, closes=task.close_on_finish)
        if self._unparsed and not self.close_when_flushed:
            with self._receiving:
                self.received(b"")
        return True

    def _carry_out(self, task: Task, request: RequestParser) -> None:
        try:
            task.service()
            self.suspended = request.continuation.suspended
            if self.suspended is None and not self.handed_over:
                self._send_header()
        except ClientDisconnected:
            task.close_on_finish = True
        except errors.ConnmgrError as why:
            # Such as the end of its token amid a download.
            self.logger.warning("The response to %s %s broke off: %s", request.command, request.path, why)
            task.close_on_finish = True
        except BaseException:
            # The application answers its own errors. This response broke off, and the request must not be answered
            # again.
            self.logger.exception("The response to %s %s broke off", request.command, request.path)
            task.close_on_finish = True

    def _finish(self, request: RequestParser, *, closes: bool) -> None:
        """Release ``request``, which was answered, and if that ``closes`` the connection, those behind it."""
        if isinstance(self.socket, PassingSocket):
            # Before the next request is read, which may pass another.
            self.socket.drop()
        with self.requests_lock:  # type: ignore[attr-defined]
            request.close()
            self.requests.pop(0)
            if closes:
                self.close_when_flushed = True
                for other in self.requests:
                    other.close()
                self.requests = []
                self._unparsed = b""
            elif not self.requests and self.request is not None and self._awaits_continue(self.request):
                self.send_continue()

    def _awaits_continue(self, request: RequestParser) -> bool:
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
        # The turn comes first: the main thread must not wait for it behind the lock. The owner's too: others give way
        # from here on, and not only after this thread got the interpreter a second time.
        with self.server.computing.turn(self.holder), self._receiving:
            try:
                data = receiving.recv(self._receive_bytes)
            except OSError:
                return False
            self.last_activity = time.time()
            return bool(self.received(data))

    # A request waits without a thread.

    def _suspend(self, request: RequestParser, suspended: Suspended) -> None:
        # Both sides may resume it from here on: the news, in the thread that brings it, and the main thread at the
        # deadline. Whoever finds `self.suspended` still set wins. If the main thread is so fast that it finds no place
        # yet, the table has dropped its entry by itself.
        self._place = self.server.suspended.add(self, suspended, request.continuation.deadline_of(suspended))
        suspended.begin(lambda: self.resume(suspended))

    def resume(self, suspended: Suspended) -> None:
        """Answer the request that waits as ``suspended`` again, if it still does; safe in any thread, at any time."""
        with self.requests_lock:  # type: ignore[attr-defined]
            if self.suspended is not suspended:
                return
            self.suspended = None
        self.server.suspended.remove(self._place)
        suspended.end()
        self.server.add_task(self)

    # The body of a request is used as it arrives.

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
            data = self._next_data(partial(self._comes_within, min(allowed, INFLOW_SECONDS)))
            request.awaited += time.monotonic() - began
            if data is None:
                if self.caller is not None:
                    self.caller.require_valid()
                raise TransferFailed(
                    f"The request's body came too slowly: it needs {INFLOW_BYTES_PER_SECOND // 1024} KiB/s on average, "
                    f"without a pause of {INFLOW_SECONDS:g} s."
                )
        else:
            # The input of a running command comes when it comes.
            data = self._next_data(partial(_comes_before, until))
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

    def _next_data(self, comes: Callable[[select.poll], bool]) -> bytes | None:
        """Return the client's next data, empty at the end; None if ``comes``, which waits for it, returns False."""
        receiving = self.socket
        poll = select.poll()
        try:
            if receiving is None:
                return b""
            poll.register(receiving, select.POLLIN)
            with waiting():
                has_come = comes(poll)
            if not has_come:
                return None
            data: bytes = receiving.recv(UPLOAD_BYTES)
        except (OSError, ValueError):
            return b""
        self.last_activity = time.time()
        return data

    def _comes_within(self, seconds: float, poll: select.poll) -> bool:
        """Wait up to ``seconds``, or until the client's token has ended; return whether data has come."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if poll.poll(min(POLL_SECONDS, max(0.0, left)) * 1000):
                return True
            if left <= 0 or self.has_ended_token:
                return False

    # A response is sent, by the thread that makes it as far as the client reads, by the main thread for the rest.

    def write_soon(self, data: Any) -> int:
        """Send a piece of the response, the header together with the first piece of the body.

        The main thread sends the rest of a small piece later. Large pieces are sent directly, which saves copies and
        memory.
        """
        if self._header is None:
            self._header = data
        elif len(data) < DIRECT_BYTES or self._awaits_reader:
            whole, self._header = self._header + data, b""
            sent = self._send_now(memoryview(whole))
            if sent < len(whole):
                with waiting():
                    super().write_soon(whole[sent:])
        else:
            self._send_header()
            self._send_all(data)
        return len(data)

    def _send_header(self) -> None:
        """Send the header if it still waits for the first piece of the body."""
        if self._header:
            self.write_soon(b"")

    def _send_all(self, data: bytes) -> None:
        rest = memoryview(data)
        self.last_activity = time.time()
        self._sending = True
        try:
            while rest:
                sent = self._send_now(rest[:SEND_BYTES])
                rest = rest[sent:]
                if sent:
                    give_way()
                else:
                    self._await_room()
        finally:
            self._sending = False

    def _send_now(self, data: memoryview) -> int:
        """Send as much of ``data`` as the socket accepts, after queued data."""
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
        if self._broken(POLL_SECONDS):
            raise ClientDisconnected

    def drained(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until the socket has accepted all that was written; return whether it has.

        No time limit of this module applies meanwhile; the caller limits how long a client may read nothing. The socket
        of a client that has gone accepts nothing.
        """
        self._awaits_reader = True
        deadline = time.monotonic() + seconds
        while True:
            self.last_activity = time.time()
            with self.outbuf_lock:
                if not self.connected or self.socket is None:
                    return False
                if self.total_outbufs_len:
                    # Private to waitress, whose public way is its main thread: this one sends a large response itself,
                    # at the pace of its reader.
                    self._flush_exception(self._flush_some, do_close=False)  # type: ignore[attr-defined]
                if not self.total_outbufs_len:
                    return True
            left = deadline - time.monotonic()
            if left <= 0 or self._broken(left, leaving=True):
                return False

    def _broken(self, seconds: float, *, leaving: bool = False) -> bool:
        """Wait up to ``seconds`` until the socket accepts data; return whether the connection is broken.

        With ``leaving``, the end of the client's side counts too, where the system reports it.
        """
        # The main thread times out a client that reads nothing, and may close the socket at any moment. Polling a
        # descriptor number that was reused is harmless and short.
        polled = self.socket
        descriptor = polled.fileno() if polled is not None else -1
        if descriptor < 0:
            return True
        poll = select.poll()
        ends = getattr(select, "POLLRDHUP", 0) if leaving else 0
        poll.register(descriptor, select.POLLOUT | ends)
        waited = min(seconds, POLL_SECONDS) * 1000
        with waiting():
            happened = poll.poll(waited)
        return any(event & (select.POLLERR | select.POLLHUP | ends) for _, event in happened)

    # The client leaves, or its socket becomes a stream's.

    @cached_property
    def cancellation(self) -> ClientCancellation:
        """The end of the client's interest in its requests."""
        return ClientCancellation(self.server.departures, lambda: self.handed_over or self.socket)

    def check_client_disconnected(self) -> bool:  # type: ignore[override]
        """Whether the client has gone."""
        return has_left(self.socket)

    def hand_over(self) -> socket.socket:
        """Return the client's socket, which the caller then reads, writes and closes; nothing more is sent here.

        :raises OSError: the client is gone.
        """
        # The main thread may be about to read it, by a poll from before this request.
        with self._receiving:
            handed = self.socket
            if handed is None:
                raise ConnectionResetError
            self.handed_over = handed.dup()
        return self.handed_over

    def handle_write(self) -> None:
        # A refused request may still be arriving. Closing now would make the kernel send a reset, and the client would
        # lose the answer. So only the sending half is closed, and arriving data is discarded for a while.
        if not (self.close_when_flushed and self.rejected):
            super().handle_write()
            return
        self.close_when_flushed = False
        super().handle_write()
        if self.total_outbufs_len:
            self.close_when_flushed = True
        elif self.connected:
            self._linger()

    def _linger(self) -> None:
        self._lingering_until = time.time() + LINGER_SECONDS
        ended = self.socket
        try:
            if ended is not None:
                ended.shutdown(socket.SHUT_WR)
        except OSError:
            self.handle_close()

    def handle_close(self) -> None:
        if "cancellation" in vars(self):
            self.cancellation.cancel()
        # Frees the received part of an incomplete request.
        if self.request is not None:
            self.request.close()
        if self.suspended is not None:
            self.server.suspended.remove(self._place)
            self.suspended.end()
            for request in self.requests:
                request.close()
        self.server.leave(self)
        super().handle_close()


def _comes_before(stop: int, poll: select.poll) -> bool:
    """Wait until there is something to read; return False if ``stop`` is readable before."""
    poll.register(stop, select.POLLIN)
    return all(descriptor != stop for descriptor, _ in poll.poll())


def _has_data(connection: socket.socket | None) -> bool:
    """Whether data has come that nobody has read yet."""
    try:
        return connection is not None and bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


class SuspendedChannels:
    """The channels whose oldest request is suspended, each with its deadline. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: list[tuple[float, int]] = []
        self._waiting: dict[int, tuple[ClientChannel, Suspended]] = {}
        self._numbers = itertools.count()
        self._suspends = True

    def add(self, channel: ClientChannel, suspended: Suspended, deadline: float) -> int:
        """Resume ``channel`` at ``deadline``, of ``time.monotonic``; return its key, for :meth:`remove`."""
        with self._lock:
            place = next(self._numbers)
            self._waiting[place] = channel, suspended
            heapq.heappush(self._due, (deadline if self._suspends else 0.0, place))
        return place

    def remove(self, place: int) -> None:
        """Forget the channel with the key ``place``. Calling it again does nothing."""
        with self._lock:
            self._waiting.pop(place, None)

    def resume_all(self) -> None:
        """Resume all channels at once, and later ones at the next :meth:`resume_due`."""
        with self._lock:
            self._suspends = False
            waiting, self._waiting, self._due = self._waiting, {}, []
        for channel, suspended in waiting.values():
            channel.resume(suspended)

    def resume_due(self) -> float:
        """Resume the channels whose deadline has passed; return the seconds until the next one, infinite for none."""
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._due or self._due[0][0] > now:
                    return self._due[0][0] - now if self._due else float("inf")
                entry = self._waiting.pop(heapq.heappop(self._due)[1], None)
            if entry is not None:
                channel, suspended = entry
                channel.resume(suspended)


class ResumableTask(WSGITask):
    """One run of a request by the application; a run that suspends the request has sent nothing."""

    request: RequestParser  # type: ignore[assignment]
    channel: Any

    def build_response_header(self) -> bytes:
        if not self.request.is_whole:
            # Answered before the whole body came: the rest would be read as another request.
            self.set_close_on_finish()
            self.channel.rejected = True
        if self.channel.has_ended_token:
            self.set_close_on_finish()
        return bytes(super().build_response_header())

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        continuation = self.request.continuation
        if continuation.suspended is not None:
            # It runs again, and the last run has read the body.
            continuation.suspended = None
            environ["wsgi.input"].seek(0)
        environ[CONTINUATION] = continuation
        environ[CANCELLATION] = self.channel.cancellation
        environ[ROOM] = self.channel.drained
        if self.channel.peer_uid is not None:
            environ[PEER_UID] = self.channel.peer_uid
        if isinstance(self.channel.socket, PassingSocket):
            environ[PASSED] = self.channel.socket.borrow
        if self.channel.is_alone:
            environ[HAND_OVER] = self.channel.hand_over
        return environ


class RejectTask(WSGITask):
    """Lets the application answer a request that the HTTP parser refused, and closes the connection.

    The application never sees the body.
    """

    channel: Any
    request: RequestParser  # type: ignore[assignment]

    def execute(self) -> None:
        self.set_close_on_finish()
        self.channel.rejected = True
        super().execute()

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[REFUSAL] = Refusal(error_of(self.request), header_read=self.request.header_read)
        environ["wsgi.input"] = BytesIO()
        # The body does not follow, or the value is not a number.
        environ.pop("CONTENT_LENGTH", None)
        return environ


def error_of(request: RequestParser) -> errors.ConnmgrError:
    """Return the error for a request that the parser has refused."""
    if request.refusal is not None:
        return request.refusal
    status = request.error.code if request.error else 500
    if status == errors.BodyTooLarge.status:
        return errors.BodyTooLarge(f"The request body exceeds {request.adj.max_request_body_size - 1} bytes.")
    if status == errors.HeadersTooLarge.status:
        return errors.HeadersTooLarge("The header of the request is too large.")
    if status < errors.OperationError.status or status == 501:
        return errors.InvalidRequest("The request is not valid HTTP, or uses a part of it that is not supported.")
    return errors.InternalError("An internal error occurred; the daemon's log says more.")
