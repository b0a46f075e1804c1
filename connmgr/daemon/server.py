"""The HTTP server: waitress, with each of its limits set on purpose."""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from connmgr.daemon.channel import Channel
from connmgr.daemon.door import Door
from connmgr.daemon.parser import Uploads
from connmgr.errors import StartupError

RESERVE = 16
"""Threads beyond the slots for requests that wait, so that all others are answered at once."""

KEEPERS = 64
"""How many threads beyond those may stay with a client that they have answered."""

MAX_CONNECTIONS = 512
"""Beyond so many, the client that is silent for longest of those without a token makes room for the next one."""

MAX_HEADER = 32 * 1024
POLL_SECONDS = 1.0
# Output beyond it pauses whoever writes, until the client has read.
PENDING_OUTPUT = 1024 * 1024
RECEIVE_BYTES = 64 * 1024


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host`` and ``port``; whoever connects before it is served waits.

    :raises StartupError: the port is taken, or the address is none of this machine's.
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
        # At once: another user may bind the same port, and take it by being the first to listen.
        bound.listen()
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"Port {port} of {host} is taken; stop what uses it, or choose another --port."
            ) from error
        raise StartupError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the base URL of a socket: ``http://127.0.0.1:21721``."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(TcpWSGIServer):
    """Serves ``application`` on a bound socket, and on a Unix socket ``beside`` it, while :meth:`run` runs.

    ``slots`` is how many requests may wait at a time, ``max_body`` is in bytes, ``trusted`` says of an Authorization
    header whether it is good, and ``uploads`` where bodies go that are no JSON.
    """

    channel_class = Channel
    active_channels: dict[int, Channel]  # type: ignore[assignment]

    def __init__(
        self,
        application: Any,
        bound: socket.socket,
        beside: socket.socket | None = None,
        *,
        slots: int,
        max_body: int,
        trusted: Callable[[str], bool],
        uploads: Uploads,
    ) -> None:
        self.trusted = trusted
        self.uploads = uploads
        self.keepers = threading.BoundedSemaphore(KEEPERS)
        self._sockets: dict[int, Any] = {}
        # A signal handler may interrupt the thread that holds it.
        self._waking = threading.RLock()
        self._shut_down = False
        self._next_drop = 0.0
        adjustments = Adjustments(
            sockets=[bound],
            threads=slots + RESERVE + KEEPERS,
            # It counts the listening sockets and the trigger too; one more is that for which another makes room.
            connection_limit=MAX_CONNECTIONS + 3 + (beside is not None),
            max_request_header_size=MAX_HEADER,
            # It refuses from the limit on.
            max_request_body_size=max_body + 1,
            # Requests carry secrets and responses output: neither is ever spooled to a temporary file; but `uploads`.
            inbuf_overflow=sys.maxsize,
            outbuf_overflow=sys.maxsize,
            outbuf_high_watermark=PENDING_OUTPUT,
            recv_bytes=RECEIVE_BYTES,
            # select() fails beyond 1,024 open files.
            asyncore_use_poll=True,
            # Nothing reads them.
            clear_untrusted_proxy_headers=False,
            expose_tracebacks=False,
            log_socket_errors=False,
            ident=None,
        )
        dispatcher = ThreadedTaskDispatcher()
        dispatcher.set_thread_count(adjustments.threads)
        super().__init__(
            application,
            map=self._sockets,
            _sock=bound,
            dispatcher=dispatcher,
            adj=adjustments,
            sockinfo=(bound.family, bound.type, bound.proto, bound.getsockname()),
            bind_socket=False,
        )
        if beside is not None:
            Door(self, beside, self._sockets)

    def run(self, until: Callable[[], bool], timeout: float = float("inf")) -> None:  # type: ignore[override]
        """Serve until ``until()`` holds, or ``timeout`` seconds have passed; :meth:`wake` has it looked at."""
        deadline = time.monotonic() + timeout
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._drop()
            wasyncore.loop(timeout=min(POLL_SECONDS, left), use_poll=True, map=self._sockets, count=1)

    def wake(self) -> None:
        """End a wait in :meth:`run`; may be called from a signal handler and from any thread, at any time."""
        self.pull_trigger()

    def pull_trigger(self) -> None:
        with self._waking:
            # Once it is closed, its descriptor's number may be another file's.
            if not self._shut_down:
                super().pull_trigger()

    def add_task(self, channel: Channel) -> None:  # type: ignore[override]
        """Have a thread answer the request that has come, unless one of them has received it itself."""
        if not channel.kept:
            self.task_dispatcher.add_task(channel)  # type: ignore[arg-type]

    @property
    def crowded(self) -> bool:
        """Whether requests wait for a thread."""
        return bool(self.task_dispatcher.queue)

    @property
    def busy(self) -> bool:
        """Whether any request is being answered."""
        return any(channel.busy for channel in list(self.active_channels.values()))

    def maintenance(self, now: float) -> None:
        """Do nothing: a connection that is closed while a poll is prepared may give its number to a new one.

        What the poll says of the old one would then close that.
        """

    def _drop(self) -> None:
        """Drop the clients whose time is over, and one that has no token where the next one would find no room."""
        now = time.time()
        if now >= self._next_drop:
            self._next_drop = now + 1
            for channel in list(self.active_channels.values()):
                if channel.overdue(now):
                    channel.handle_close()
        if len(self.active_channels) > MAX_CONNECTIONS:
            strangers = [channel for channel in list(self.active_channels.values()) if channel.dispensable]
            if strangers:
                min(strangers, key=lambda channel: channel.last_activity).handle_close()

    def shut_down(self) -> None:
        """Close every connection and end the threads that are idle; others end with the process."""
        self.task_dispatcher.shutdown(timeout=1)
        with self._waking:
            self._shut_down = True
        wasyncore.close_all(self._sockets)
