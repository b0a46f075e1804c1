"""The port of a tunnel on this machine, and the greetings of SOCKS clients."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from connmgr.errors import OperationError, PermissionDenied, PortInUse
from connmgr.socks import MAX_GREETING_BYTES, Greeting
from connmgr.streams.loop import Loop
from connmgr.tunnels.ends import SocketEnd
from connmgr.tunnels.waiting import Client

BACKLOG = 256
ACCEPTS_AT_ONCE = 64
GREETING_SECONDS = 10.0
"""Longest wait for the request of a SOCKS client."""

PAUSE_SECONDS = 0.25
"""Pause in accepting after the process has run out of descriptors."""


class Door:
    """A listening port. Its clients go to ``to``, or if that is None, to the address in each one's SOCKS request.

    ``enter`` is called with each client in the thread of the loop, to which all methods belong.
    :raises PortInUse: the port is taken.
    :raises OperationError: the address is not this machine's, or cannot be listened on.
    """

    def __init__(
        self, loop: Loop, host: str, port: int, to: tuple[str, int] | None, enter: Callable[[Client], None]
    ) -> None:
        self._loop, self._to, self._enter = loop, to, enter
        self._socket = _listening(host, port)
        self._greeted: set[socket.socket] = set()
        self._is_open = self._closed = False
        self.host, self.port = self._socket.getsockname()[:2]

    def open(self) -> None:
        """Accept clients. Calling it again does nothing."""
        if not (self._is_open or self._closed):
            self._is_open = True
            self._loop.watch(self._socket.fileno(), selectors.EVENT_READ, lambda _: self._accept())

    def shut(self) -> None:
        """Accept no clients until :meth:`open`; they wait at the port."""
        if self._is_open:
            self._is_open = False
            self._loop.unwatch(self._socket.fileno())

    def close(self) -> None:
        """Stop listening. Calling it again does nothing."""
        self.shut()
        self._closed = True
        self._socket.close()
        for connected in list(self._greeted):
            self._leave(connected)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if not self._is_open:
                return
            try:
                connected, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                # The process has no descriptor left; others will close theirs.
                self.shut()
                self._loop.after(PAUSE_SECONDS, self.open)
                return
            if self._to is not None:
                self._enter(Client(SocketEnd(self._loop, connected), self._to))
            else:
                self._greet(connected)

    def _greet(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._greeted.add(connected)
        greeting = Greeting(grants=False)
        self._loop.watch(connected.fileno(), selectors.EVENT_READ, lambda _: self._hear(connected, greeting))
        self._loop.after(GREETING_SECONDS, partial(self._leave, connected))

    def _hear(self, connected: socket.socket, greeting: Greeting) -> None:
        try:
            asked = greeting.take(connected.recv(MAX_GREETING_BYTES))
            connected.send(greeting.answer())
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._leave(connected)
            return
        if asked is not None:
            self._greeted.discard(connected)
            self._loop.unwatch(connected.fileno())
            end = SocketEnd(self._loop, connected)
            self._enter(Client(end, (asked.host, asked.port), asked.rest, greeting.reply))

    def _leave(self, connected: socket.socket) -> None:
        if connected in self._greeted:
            self._greeted.discard(connected)
            with suppress(OSError):
                self._loop.unwatch(connected.fileno())
            connected.close()


def _listening(host: str, port: int) -> socket.socket:
    host = "127.0.0.1" if host == "localhost" else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"Another program listens on port {port} of {host} already.") from error
        if error.errno == errno.EACCES:
            raise PermissionDenied(f"The daemon's user may not listen on port {port}.") from error
        reason = os.strerror(error.errno) if error.errno else "it is none"
        raise OperationError(f"It is impossible to listen on {host} port {port} here: {reason}.") from error
    made.setblocking(False)
    return made
