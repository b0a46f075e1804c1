"""A port of this machine whose clients get a stream each, and the greetings of SOCKS clients."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from connmgr.streams.endpoints import SocketEndpoint
from connmgr.streams.loop import Loop, Timer
from connmgr.streams.socks import MAX_GREETING_BYTES, Greeting

BACKLOG = 256
ACCEPTS_AT_ONCE = 64
GREETING_SECONDS = 10.0
"""Longest wait for the request of a SOCKS client."""

PAUSE_SECONDS = 0.25
"""Pause in accepting after the process has run out of descriptors."""


class Accepted(NamedTuple):
    """A client, its destination, and the data it has sent so far; ``answer`` tells a SOCKS client the outcome."""

    endpoint: SocketEndpoint
    to: tuple[str, int]
    early: bytes = b""
    answer: Callable[[bool], bytes] = lambda _: b""


class PortListener:
    """A listening port. Its clients go to ``to``, or if that is None, to the address in each one's SOCKS request.

    ``enter`` is called with each client in the thread of the loop, to which all methods belong.

    :raises OSError: the port is taken, or the address is not this machine's.
    """

    def __init__(
        self, loop: Loop, host: str, port: int, to: tuple[str, int] | None, enter: Callable[[Accepted], None]
    ) -> None:
        self._loop, self._to, self._enter = loop, to, enter
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self._greeted: dict[socket.socket, Timer] = {}
        self._is_open = self._closed = False
        self.host: str
        self.port: int
        self.host, self.port = self._socket.getsockname()[:2]

    def open(self) -> None:
        """Accept clients. Calling it again does nothing."""
        if not (self._is_open or self._closed):
            self._is_open = True
            self._loop.watch(self._socket.fileno(), selectors.EVENT_READ, self._accept)

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
            self._turn_away(connected)

    def _accept(self, _: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if not self._is_open:
                return
            try:
                connected, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                # A client may be gone again before it is accepted: ECONNABORTED (accept(2)).
                return
            except OSError:
                # The process has no descriptor left (EMFILE). The client stays in the queue, so the socket stays
                # readable and the loop would spin until another stream has closed its own.
                self.shut()
                self._loop.after(PAUSE_SECONDS, self.open)
                return
            if self._to is not None:
                self._enter(Accepted(SocketEndpoint(self._loop, connected), self._to))
            else:
                self._greet(connected)

    def _greet(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        greeting = Greeting(grants=False)
        self._loop.watch(connected.fileno(), selectors.EVENT_READ, lambda _: self._hear(connected, greeting))
        self._greeted[connected] = self._loop.after(GREETING_SECONDS, partial(self._turn_away, connected))

    def _hear(self, connected: socket.socket, greeting: Greeting) -> None:
        try:
            request = greeting.take(connected.recv(MAX_GREETING_BYTES))
            connected.send(greeting.answer())
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._turn_away(connected)
            return
        if request is not None:
            self._greeted.pop(connected).cancel()
            self._loop.unwatch(connected.fileno())
            endpoint = SocketEndpoint(self._loop, connected)
            self._enter(Accepted(endpoint, (request.host, request.port), request.rest, greeting.reply))

    def _turn_away(self, connected: socket.socket) -> None:
        timer = self._greeted.pop(connected, None)
        if timer is not None:
            timer.cancel()
            self._loop.unwatch(connected.fileno())
            connected.close()
