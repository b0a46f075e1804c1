"""The HTTP server: waitress, with every limit set explicitly, its threads, and the Unix socket beside its port."""

from __future__ import annotations

import errno
import logging
import math
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from connmgr.api.auth import Caller
from connmgr.api.services import STOPS
from connmgr.computing import Computing, Rests
from connmgr.daemon.channel import RECEIVING_REST, ClientChannel, SuspendedChannels
from connmgr.daemon.departures import Departures
from connmgr.daemon.parser import Bodies
from connmgr.daemon.passing import PassingSocket
from connmgr.daemon.process import Garbage
from connmgr.errors import StartupError
from connmgr.processes import is_trusted, peer_uid
from connmgr.shares import Shares, of_tokens

QUICK_THREADS = 16
"""Threads in addition to the slots for slow requests, so that quick requests never wait for a slow one."""

KEEP_ALIVE_THREADS = 64
"""Threads in addition to those that wait for a client's next request."""

MAX_CONNECTIONS = 512
"""Most connections at once. At the limit, the longest-idle one is closed: of a client without a token, else of a token.
"""

TOKEN_CONNECTIONS = 128
"""Most connections of one token, and of those made with it; at the limit its longest-idle one is closed."""

TOKENS_CONNECTIONS = 384
"""Most connections of all tokens together, so that some remain for the owner."""

SOCKET_CONNECTIONS = 64
"""Connections in addition, for the Unix socket, whose clients are of the daemon's user."""

OWNER_THREADS = 40
STRANGER_THREADS = 16
ACCEPTS = 64
"""Clients accepted in one turn of the loop. One at a time, many would wait until the kernel drops further ones."""

BACKLOG = 4096
"""Clients that the kernel keeps until they are accepted; it drops others, which try again only after a second."""

HEADER_BYTES = 32 * 1024
POLL_SECONDS = 1.0
PENDING_OUTPUT_BYTES = 1024 * 1024
"""Queued output at which the writing thread waits for the client."""

RECEIVE_BYTES = 64 * 1024

UNIX_ADDRESS = ("localhost", 0)
"""The address shown for clients of the Unix socket, which have none."""

_log = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host`` and ``port``; clients may connect before it is served.

    :raises StartupError: the port is taken, or the address is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise StartupError(f"The address {host} cannot be resolved: {error}.") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # Until we listen, another user may bind the same port and listen first.
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"Port {port} of {host} is taken; stop what uses it, or choose another --port."
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise StartupError(
                f"Cannot listen on {host}:{port}: not an address of this machine; choose another --host."
            ) from error
        advice = " Ports below 1024 are root's; choose another --port." if error.errno == errno.EACCES else ""
        raise StartupError(f"Cannot listen on {host}:{port}: {error.strerror}.{advice}") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the base URL of a socket: ``http://127.0.0.1:21721``."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(TcpWSGIServer):
    """Serves ``application`` on a bound socket, and on the Unix socket ``beside`` it, during :meth:`run`.

    ``slots`` is the number of simultaneous slow requests, ``max_body`` is in bytes, ``sender_of`` returns the sender of
    a request by its Authorization header if that is valid, ``bodies`` says where bodies go, and ``computing`` who may
    compute now.
    """

    channel_class = ClientChannel
    active_channels: dict[int, ClientChannel]  # type: ignore[assignment]

    def __init__(
        self,
        application: Any,
        bound: socket.socket,
        beside: socket.socket | None = None,
        *,
        slots: int,
        max_body: int,
        sender_of: Callable[[str], Caller | None],
        bodies: Bodies,
        computing: Computing,
    ) -> None:
        self.sender_of = sender_of
        self.computing = computing
        self.bodies = bodies
        self._shares = Shares(TOKEN_CONNECTIONS, TOKENS_CONNECTIONS)
        # Clients of several threads may show their tokens at the same time.
        self._joining = threading.Lock()
        self.keep_alive_threads = threading.BoundedSemaphore(KEEP_ALIVE_THREADS)
        self._sockets: dict[int, Any] = {}
        # Reentrant, because a signal handler may interrupt the thread that holds it.
        self._waking = threading.RLock()
        self._shut_down = False
        self._next_drop = 0.0
        self.suspended = SuspendedChannels()
        self.rests = Rests(computing, RECEIVING_REST)
        self.departures = Departures()
        self.garbage = Garbage()
        adjustments = _adjustments(bound, slots, max_body, listening=1 if beside is None else 2)
        super().__init__(
            application,
            map=self._sockets,
            _sock=bound,
            dispatcher=Threads(adjustments.threads, _thread_shares(slots, adjustments.threads)),
            adj=adjustments,
            sockinfo=(bound.family, bound.type, bound.proto, bound.getsockname()),
            bind_socket=False,
        )
        if beside is not None:
            UnixListener(self, beside, self._sockets, self._has_room_beside)

    def run(self, until: Callable[[], bool], timeout: float = float("inf")) -> None:  # type: ignore[override]
        """Serve until ``until()`` holds or ``timeout`` seconds have passed; :meth:`wake` makes it call ``until``."""
        deadline = time.monotonic() + timeout
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._drop()
            # Nobody wakes this thread for a deadline or the end of a rest, so it sleeps no longer than the next one.
            pause = min(POLL_SECONDS, left, self.suspended.resume_due(), self._until_rested())
            wasyncore.loop(timeout=pause, use_poll=True, map=self._sockets, count=1)

    def _until_rested(self) -> float:
        """Return the seconds until the first client may be read again whose token rests."""
        if not self.rests.are_due:
            return POLL_SECONDS
        now = time.monotonic()
        ends = [channel.rests_until for channel in list(self.active_channels.values()) if channel.rests_until > now]
        # poll(2) counts whole milliseconds; rounded down, the last one would be spent awake.
        return math.ceil((min(ends) - now) * 1000) / 1000 if ends else POLL_SECONDS

    def pull_trigger(self) -> None:
        """End a wait in :meth:`run`; safe in a signal handler and in any thread, at any time."""
        with self._waking:
            # Guards against writing to a descriptor number that was reused.
            if not self._shut_down:
                super().pull_trigger()

    def add_task(self, channel: ClientChannel) -> None:  # type: ignore[override]
        """Queue the request for a thread, unless the thread that received it answers it itself."""
        if not channel.keeps_alive:
            self.task_dispatcher.add_task(channel)  # type: ignore[arg-type]

    def crowded(self, holder: str | None) -> bool:
        """Whether requests wait for a thread that answers one of ``holder``."""
        return bool(self.task_dispatcher.crowded(holder))  # type: ignore[attr-defined]

    @property
    def busy(self) -> bool:
        """Whether any request is being answered."""
        return any(channel.busy for channel in list(self.active_channels.values()))

    def maintenance(self, now: float) -> None:
        """Do nothing: a poll may already be prepared, and would close a new connection with a reused descriptor."""

    def handle_accept(self) -> None:
        for _ in range(ACCEPTS):
            before = len(self.active_channels)
            super().handle_accept()
            if len(self.active_channels) == before:
                return

    def join(self, channel: ClientChannel, holder: str) -> bool:
        """Count a connection for the token ``holder``; return False if it may have no more, and none can be closed."""
        with self._joining:
            if not self._shares.take(holder):
                own = self._shares.is_exhausted(holder)
                others = [
                    channel
                    for channel in list(self.active_channels.values())
                    if channel.counts_for and channel.is_idle and (channel.counts_for == holder or not own)
                ]
                if not others:
                    return False
                # The token with the most connections gives one up.
                last = min(others, key=lambda channel: (-self._shares.held(channel.counts_for), channel.last_activity))
                self._leave(last)
                last.gives_way = True
                if not self._shares.take(holder):
                    return False
            channel.counts_for = holder
        return True

    def leave(self, channel: ClientChannel) -> None:
        """Count a connection for no token any more; calling it again does nothing."""
        with self._joining:
            self._leave(channel)

    def _leave(self, channel: ClientChannel) -> None:
        if channel.counts_for is not None:
            self._shares.give_back(channel.counts_for)
            channel.counts_for = None

    def _has_room_beside(self) -> bool:
        return len(self.active_channels) < MAX_CONNECTIONS + ACCEPTS + SOCKET_CONNECTIONS

    def _drop(self) -> None:
        """Close clients that exceeded a time limit, and those that make room for others."""
        now = time.time()
        channels = list(self.active_channels.values())
        if now >= self._next_drop:
            self._next_drop = now + 1
            # Streams and tunnels leave garbage too, without a request.
            if self.computing.is_quiet:
                self.garbage.collect_if_due(quiet=True)
            for channel in channels:
                if channel.overdue(now):
                    channel.handle_close()
                elif (waits := channel.suspended) is not None and channel.has_ended_token:
                    # It is refused, and not when its news come.
                    channel.resume(waits)
        for channel in channels:
            if channel.gives_way and channel.is_idle:
                channel.handle_close()
        excess = len(self.active_channels) - MAX_CONNECTIONS
        if excess > 0:
            idle = [channel for channel in list(self.active_channels.values()) if channel.is_idle]
            for channel in sorted(idle, key=lambda channel: (channel.rank, channel.last_activity))[:excess]:
                channel.handle_close()

    def shut_down(self) -> None:
        """Close every connection and end the idle threads; the others end with the process."""
        self.task_dispatcher.shutdown(timeout=1)
        self.departures.close()
        with self._waking:
            self._shut_down = True
        wasyncore.close_all(self._sockets)


class Threads(ThreadedTaskDispatcher):
    """Serves each task with an idle thread, or with a new one while there are fewer than ``most``.

    Otherwise, and if the system allows no more threads, tasks wait for a thread; those that find all threads taken are
    marked as ``queued``. So are those whose ``holder`` has its share of the threads: they wait for one of these.
    """

    def __init__(self, most: int, shares: Shares) -> None:
        super().__init__()
        self._most, self._shares = most, shares
        # Two simultaneous tasks must not count the same idle thread.
        self._adding = threading.Lock()
        self._held_back: deque[tuple[str | None, Any]] = deque()

    def crowded(self, holder: str | None) -> bool:
        """Whether tasks wait for a thread that serves ``holder``: the owner's makes room for no token's share."""
        if self.queue and len(self.queue) > len(self.threads) - self.active_count:
            return True
        return bool(self._held_back) and holder is not None

    def add_task(self, task: Any) -> None:
        holder = task.holder
        with self._adding:
            if self._shares.take(holder):
                self._queue(holder, task)
            else:
                task.queued = True
                self._held_back.append((holder, task))

    def shutdown(self, cancel_pending: bool = True, timeout: int = 5) -> bool:
        with self._adding:
            held_back, self._held_back = self._held_back, deque()
        if cancel_pending:
            for _, task in held_back:
                task.cancel()
        return bool(super().shutdown(cancel_pending, timeout))

    def end(self, holder: str | None) -> None:
        """Note that a task of ``holder`` is over, and let the first one that was held back take its place."""
        with self._adding:
            self._shares.give_back(holder)
            for place, (waiting, task) in enumerate(self._held_back):
                if self._shares.take(waiting):
                    del self._held_back[place]
                    self._queue(waiting, task)
                    task.queued = True
                    return

    def _queue(self, holder: str | None, task: Any) -> None:
        """Queue a task that counts for ``holder``; the caller holds the lock."""
        # A new thread counts as active until it takes a task, so there are never too few.
        idle = len(self.threads) - self.active_count
        if len(self.queue) >= idle:
            task.queued = len(self.threads) >= self._most
            if not task.queued:
                self.set_thread_count(len(self.threads) + 1)
        with self.lock:
            self.queue.append(_Counted(self, holder, task))  # type: ignore[arg-type]
            self.queue_cv.notify()

    def start_new_thread(self, target: Callable[[int], object], thread_no: int) -> None:
        try:
            super().start_new_thread(target, thread_no)
        except RuntimeError:
            _log.error(
                "The system allows no further thread: requests wait for the %d there are.", len(self.threads) - 1
            )
            self.threads.discard(thread_no)
            # The caller adds one, because it counts the thread as started.
            self.active_count -= 1


class _Counted:
    """A task that counts for ``holder`` until it is over."""

    def __init__(self, threads: Threads, holder: str | None, task: Any) -> None:
        self._threads, self._holder, self._task = threads, holder, task

    def service(self) -> None:
        try:
            self._task.service()
        finally:
            self._threads.end(self._holder)

    def cancel(self) -> None:
        self._task.cancel()


class UnixListener(wasyncore.dispatcher):
    """Accepts clients of ``server`` on a bound Unix socket that run as this user or root, while it ``has_room``."""

    def __init__(
        self, server: TcpWSGIServer, bound: socket.socket, sockets: dict[int, Any], has_room: Callable[[], bool]
    ) -> None:
        super().__init__(bound, map=sockets)
        self._server = server
        self._sockets = sockets
        self._has_room = has_room
        self.accepting = True

    def readable(self) -> bool:
        return self._has_room()

    def writable(self) -> bool:
        return False

    def handle_accept(self) -> None:
        try:
            accepted = self.accept()
        except OSError:
            return
        if accepted is None:
            return
        connected = accepted[0]
        try:
            uid = peer_uid(connected)
        except OSError:
            connected.close()
            return
        if is_trusted(uid):
            passing = PassingSocket(fileno=connected.detach())
            ClientChannel(self._server, passing, UNIX_ADDRESS, self._server.adj, map=self._sockets).peer_uid = uid
        else:
            connected.close()


def _thread_shares(slots: int, threads: int) -> Shares:
    """Return the shares of the threads: one token may have as many as it has ``slots``, and some for quick requests."""
    together = max(1, threads - OWNER_THREADS)
    return Shares(min(together, of_tokens(slots - STOPS)[0] + QUICK_THREADS), together, strangers=STRANGER_THREADS)


def _adjustments(bound: socket.socket, slots: int, max_body: int, *, listening: int) -> Adjustments:
    """Return waitress's settings for a server with ``listening`` sockets that accept clients."""
    return Adjustments(
        sockets=[bound],
        # More than there are slots, so that a handshake or a stop never waits for a command.
        threads=slots + QUICK_THREADS + KEEP_ALIVE_THREADS,
        # waitress counts the listening sockets and the trigger too; the others are clients that replace other ones.
        connection_limit=MAX_CONNECTIONS + ACCEPTS + 1 + listening,
        backlog=BACKLOG,
        max_request_header_size=HEADER_BYTES,
        # waitress refuses a body of exactly this size.
        max_request_body_size=max_body + 1,
        # Requests carry secrets and responses output: only `uploads` may go to a file.
        inbuf_overflow=sys.maxsize,
        outbuf_overflow=sys.maxsize,
        outbuf_high_watermark=PENDING_OUTPUT_BYTES,
        recv_bytes=RECEIVE_BYTES,
        # select() fails beyond 1,024 open files.
        asyncore_use_poll=True,
        # No program reads these headers.
        clear_untrusted_proxy_headers=False,
        expose_tracebacks=False,
        log_socket_errors=False,
        ident=None,
    )
